"""Steps and inference on the CPU against DGL, with memory given back and with memory kept."""
