"""The words of the candidate language: every name that a candidate may use, and hints for the ones it may not.

An allow-list: what is not here is refused. ``kernels/language.py`` checks sources by it and ``describe`` prints it.
"""

from __future__ import annotations

from kernels.interpreter_names import EXTERN_NAMES

DTYPE_NAMES = frozenset(
    "float16 bfloat16 float32 float64 int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float8e4nv float8e5 float8e4b8 float8e5b16 float8e4b15".split()
)
TORCH_DTYPES = frozenset(
    "float16 bfloat16 float32 float64 half float double int8 int16 int32 int64 int long short uint8 bool "
    "float8_e4m3fn float8_e5m2".split()
)

IMPORTS = {
    "torch": "torch",
    "triton": "triton",
    "triton.language": "triton.language",
    "math": "math",
}
FROM_IMPORTS: dict[str, frozenset[str]] = {
    "triton": frozenset({"language", "jit", "cdiv", "next_power_of_2"}),
    "triton.language": frozenset({"constexpr", "math"}) | DTYPE_NAMES,
    "triton.language.math": frozenset("exp exp2 log log2 sqrt rsqrt sin cos erf abs floor ceil fma".split()),
    "triton.language.extra": frozenset({"libdevice"}),
    "triton.language.extra.libdevice": EXTERN_NAMES,
    "triton.language.extra.cuda": frozenset({"libdevice"}),
    "triton.language.extra.cuda.libdevice": EXTERN_NAMES,
}

# --- host code

HOST_BUILTINS = frozenset("min max len range int float bool abs sum tuple list divmod round zip enumerate".split())
HOST_EXCEPTIONS = frozenset("ValueError RuntimeError NotImplementedError TypeError AssertionError".split())
ALLOCATIONS = frozenset(
    "torch.empty torch.empty_like torch.empty_strided torch.zeros torch.zeros_like torch.ones torch.ones_like "
    "torch.full torch.full_like".split()
)
HOST_CALLS = frozenset(
    "torch.cuda.get_device_capability torch.cuda.get_device_properties torch.finfo torch.iinfo "
    "triton.cdiv triton.next_power_of_2 "
    "math.sqrt math.rsqrt math.log math.log2 math.exp math.ceil math.floor math.prod math.gcd "
    "math.isqrt math.pow".split()
)
HOST_VALUES = (
    frozenset("math.pi math.e math.inf".split())
    | {f"torch.{name}" for name in TORCH_DTYPES}
    | {f"triton.language.{name}" for name in DTYPE_NAMES}
)
HOST_ATTRIBUTES = frozenset(
    "shape dtype device ndim itemsize T mT multi_processor_count major minor warp_size eps bits".split()
)
LIMIT_ATTRIBUTES = frozenset({"min", "max", "eps", "tiny", "bits"})
TENSOR_QUERIES = frozenset("size stride dim numel element_size is_contiguous storage_offset".split())
TENSOR_VIEWS = frozenset(
    "contiguous view reshape flatten unsqueeze squeeze transpose permute t expand unflatten movedim".split()
)
TENSOR_ALLOCATIONS = frozenset("new_empty new_zeros new_ones new_full new_empty_strided".split())
TABLE_METHODS = frozenset("get items keys values index count".split())
MUTATORS = frozenset("append extend insert pop popitem update setdefault clear remove sort reverse add discard".split())
TORCH_NOT_COMPUTE = frozenset(
    "cuda save load compile jit hub utils classes library ops set_default_device set_default_dtype manual_seed device "
    "multiprocessing distributed serialization package backends autograd overrides Tensor tensor as_tensor "
    "from_numpy frombuffer get_default_dtype version _C _dynamo _inductor fx export onnx profiler testing".split()
)

# --- kernels

KERNEL_BUILTINS = frozenset("range min max float int bool abs len isinstance".split())
TL_NAMES = (
    frozenset(
        "constexpr program_id num_programs arange load store zeros zeros_like full where sum max min argmax argmin "
        "exp exp2 log log2 sqrt sqrt_rn rsqrt sin cos abs floor ceil erf fma sigmoid softmax maximum "
        "minimum clamp cdiv "
        "dot dot_scaled trans permute reshape view ravel broadcast broadcast_to expand_dims cat join split "
        "interleave flip sort topk gather histogram cumsum cumprod associative_scan reduce xor_sum "
        "reduce_or cast multiple_of "
        "max_contiguous max_constancy assume static_assert static_range range debug_barrier make_block_ptr advance "
        "make_tensor_descriptor atomic_add atomic_max atomic_min atomic_and atomic_or atomic_xor "
        "atomic_xchg atomic_cas "
        "swizzle2d div_rn fdiv umulhi squeeze unsqueeze tensor dtype PropagateNan".split()
    )
    | DTYPE_NAMES
)
TL_MATH = frozenset(
    "exp exp2 log log2 sqrt sqrt_rn rsqrt sin cos erf abs floor ceil fma div_rn fdiv umulhi max min".split()
)
KERNEL_CALLS = (
    frozenset(f"triton.language.{name}" for name in TL_NAMES)
    | frozenset(f"triton.language.math.{name}" for name in TL_MATH)
    | frozenset(f"triton.language.extra.libdevice.{name}" for name in EXTERN_NAMES)
    | frozenset(f"triton.language.extra.cuda.libdevice.{name}" for name in EXTERN_NAMES)
    | frozenset({"triton.cdiv", "triton.next_power_of_2"})
)
KERNEL_VALUES = frozenset(
    f"triton.language.{name}" for name in DTYPE_NAMES | {"constexpr", "tensor", "dtype", "tensor_descriptor"}
) | {f"triton.language.PropagateNan.{name}" for name in ("ALL", "NONE")}
KERNEL_ATTRIBUTES = frozenset("dtype shape T element_ty type scalar value numel primitive_bitwidth".split())
KERNEL_METHODS = frozenset(
    "to cast reshape view trans permute broadcast_to expand_dims ravel flip split sum max min argmax argmin cumsum "
    "cumprod exp exp2 log log2 sqrt rsqrt sqrt_rn sin cos abs floor ceil erf sigmoid softmax cdiv logical_and "
    "logical_or sort gather store load item is_floating is_fp16 is_fp32 is_fp64 is_bf16 is_int is_fp8 "
    "associative_scan reduce histogram atomic_add atomic_max atomic_min".split()
)
KERNEL_LOOPS = frozenset({"range", "triton.language.range", "triton.language.static_range"})
LAUNCH_OPTIONS = frozenset("num_warps num_stages num_ctas maxnreg waves_per_eu matrix_instr_nonkdim kpack".split())
JIT_OPTIONS = frozenset("do_not_specialize do_not_specialize_on_alignment noinline".split())

HINTS: dict[str, str] = {
    "triton.language.inline_asm_elementwise": "inline assembly is refused; use the functions of triton.language",
    "triton.language.pointer_type": "a number never becomes a pointer; add offsets to an argument instead",
    "triton.language.device_print": "kernels do not print",
    "triton.language.static_print": "kernels do not print",
    "triton.language.rand": "random numbers make a result that nobody can check",
    "triton.autotune": "a schedule is a value: put it into a table and choose by shape and capability",
    "triton.heuristics": "compute the constexpr in the host function and pass it",
    "torch.device": "use the device of an argument: x.device",
    "torch.tensor": "pass numbers to the kernel as arguments",
    "print": "candidates do not print",
    "open": "candidates have no files",
    "getattr": "name the attribute",
    "type": "the task says what the arguments are",
    "isinstance": "the task says what the arguments are",
    "data_ptr": "pass the tensor; Triton takes its pointer",
    "is_cuda": "the judge runs where the task's tensors are; do not branch on it",
    "to": "convert inside the kernel: value.to(y_ptr.dtype.element_ty)",
    "item": "a value of a tensor is read by a kernel only",
}
