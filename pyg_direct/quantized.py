"""The path that pickles of quantized tensors name."""

from .core.quantized import QuantizedTensor as QuantizedTensor
from .core.quantized import quantize as quantize
