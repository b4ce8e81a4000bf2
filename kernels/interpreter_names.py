"""Names of triton.language.extra.libdevice that the interpreter computes, for those who must not import Triton."""

EXTERN_NAMES = frozenset(
    "tanh rsqrt exp exp2 log log2 log1p expm1 sqrt erf fast_expf fast_dividef pow rint trunc".split()
)
