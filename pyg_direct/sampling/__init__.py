"""From seeds to PyG's `SamplerOutput`: what is drawn, hop by hop."""
