"""The candidate language: which Python a kernel candidate may be written in, checked before anything of it runs.

A candidate is one module: ``@triton.jit`` kernels and plain host functions, one of them named by the task. Host code
may allocate, look at shapes, and launch; kernels may use the listed part of ``triton.language``. It is an allow-list
over the syntax tree: a node, name, attribute or call that ``kernels/language_rules.py`` does not list is refused, with
the rule, the line and a hint. The gate is the first wall and not the only one (``kernels/child.py`` and the container
hold without it).
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field

from kernels import language_rules as rules
from kernels.reasons import CODES, Reason
from kernels.task import Task

MAX_NODES = 20_000
MAX_REASONS = 12
SOURCE_FILE = "candidate.py"


@dataclass
class Module:
    """What a candidate defines at module level."""

    aliases: dict[str, str] = field(default_factory=dict)  # local name -> canonical dotted name
    constants: dict[str, str] = field(default_factory=dict)  # name -> "number" | "constexpr" | "other"
    kernels: dict[str, ast.FunctionDef] = field(default_factory=dict)
    hosts: dict[str, ast.FunctionDef] = field(default_factory=dict)
    launched: set[str] = field(default_factory=set)

    def defines(self, name: str) -> bool:
        """Whether the module binds the name."""
        return any(name in table for table in (self.aliases, self.constants, self.kernels, self.hosts))


class Refusals:
    """Collects reasons; one per code and line."""

    def __init__(self) -> None:
        self.reasons: list[Reason] = []

    def add(self, code: str, rule: str, node: ast.AST | None = None, hint: str = "") -> None:
        line = getattr(node, "lineno", None)
        where = f"{SOURCE_FILE}:{line}" if line else ""
        if len(self.reasons) < MAX_REASONS and not any(r.code == code and r.where == where for r in self.reasons):
            self.reasons.append(Reason(code, f"{rule}; hint: {hint}" if hint else rule, where))


def check_source(source: str, task: Task) -> list[Reason]:
    """Reasons to refuse ``source`` as a candidate for ``task``; empty when it is in the language."""
    refusals = Refusals()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, SOURCE_FILE)
        if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
            return [Reason("syntax", f"more than {MAX_NODES} syntax nodes")]
        _check_module(tree, task, refusals)
    except SyntaxError as error:
        return [Reason("syntax", str(error.msg), f"{SOURCE_FILE}:{error.lineno or 1}")]
    except (ValueError, RecursionError, MemoryError) as error:
        return [Reason("syntax", f"cannot be parsed: {type(error).__name__}: {str(error)[:100]}")]
    return refusals.reasons


def _check_module(tree: ast.Module, task: Task, refusals: Refusals) -> None:
    from kernels.language_host import HostChecker
    from kernels.language_kernel import check_kernel

    module = Module()
    for statement in tree.body:
        _check_top(statement, module, refusals)
    host = module.hosts.get(task.host)
    if host is None:
        detail = f"no plain function `{task.host}` at module level"
        if task.host in module.kernels:
            detail = f"`{task.host}` is a kernel; the task calls it as a host function that launches one"
        refusals.add("missing-host-function", detail, module.kernels.get(task.host))
    checker = HostChecker(module, refusals)
    if host is not None:
        _check_signature(host, task, refusals)
        kinds = ["tensor" if argument.kind == "tensor" else "number" for argument in task.arguments]
        checker.function(host, kinds)
        if not checker.launches and not refusals.reasons:
            refusals.add("no-kernel-launched", f"`{task.host}` launches no kernel: kernel[grid](...)", host)
    for function in module.hosts.values():
        if function.name not in checker.seen:
            checker.function(function, [])
    for function in module.kernels.values():
        check_kernel(function, module, refusals)


def _check_top(statement: ast.stmt, module: Module, refusals: Refusals) -> None:
    """One statement of the module."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        if not isinstance(statement.value.value, str):
            refusals.add("forbidden-construct", "an expression at module level", statement)
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        _check_import(statement, module, refusals)
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        _check_constant(statement, module, refusals)
    elif isinstance(statement, ast.FunctionDef):
        _check_definition(statement, module, refusals)
    else:
        hints = {
            "ClassDef": "kernels and functions only", "Try": "there is one way to compute the result",
            "If": "a module is the same on every machine", "AsyncFunctionDef": "plain functions only",
        }  # fmt: skip
        name = type(statement).__name__
        code = "module-state" if isinstance(statement, ast.AugAssign | ast.Global) else "forbidden-construct"
        refusals.add(code, f"`{name}` at module level", statement, hints.get(name, ""))


def _check_import(statement: ast.Import | ast.ImportFrom, module: Module, refusals: Refusals) -> None:
    hint = "torch, triton, triton.language, math, and the listed functions of libdevice"
    for alias in statement.names:
        if isinstance(statement, ast.Import):
            allowed = alias.name in rules.IMPORTS
            bound = alias.asname or alias.name.partition(".")[0]
            canonical = alias.name if alias.asname else alias.name.partition(".")[0]
        else:
            origin = statement.module or ""
            allowed = statement.level == 0 and alias.name in rules.FROM_IMPORTS.get(origin, ())
            bound, canonical = alias.asname or alias.name, f"{origin}.{alias.name}"
        if not allowed:
            refusals.add("forbidden-import", f"`{ast.unparse(statement)}`", statement, hint)
        elif bound.startswith("__"):
            refusals.add("forbidden-name", f"`{bound}` as a name", statement)
        else:
            module.aliases[bound] = canonical


def _check_constant(statement: ast.Assign | ast.AnnAssign, module: Module, refusals: Refusals) -> None:
    """NAME = literal, or NAME: tl.constexpr = literal."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    value = statement.value
    for target in targets:
        if not isinstance(target, ast.Name):
            refusals.add(
                "module-state", f"`{ast.unparse(target)[:60]} = …` changes an object", statement, "bind names only"
            )
        elif module.defines(target.id) or target.id in rules.HOST_BUILTINS or target.id.startswith("__"):
            refusals.add("module-state", f"`{target.id}` is bound twice, or hides a word of the language", statement)
        elif value is None:
            refusals.add("forbidden-construct", f"`{target.id}` without a value", statement)
        else:
            kind = _literal_kind(value, module, refusals)
            if (
                isinstance(statement, ast.AnnAssign)
                and dotted(statement.annotation, module) == "triton.language.constexpr"
            ):
                kind = "constexpr"
            module.constants[target.id] = kind


def _literal_kind(node: ast.expr, module: Module, refusals: Refusals) -> str:
    """Check a module-level value: numbers, strings, dtypes, and tuples, lists, dictionaries of them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str | None):
        return "number" if isinstance(node.value, int | float) else "other"
    if isinstance(node, ast.UnaryOp | ast.BinOp):
        operands = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
        for operand in operands:
            _literal_kind(operand, module, refusals)
        return "number"
    if isinstance(node, ast.Tuple | ast.List | ast.Dict):
        _check_container(node, module, refusals)
        return "other"
    if isinstance(node, ast.Name) and node.id in module.constants:
        return module.constants[node.id]
    name = dotted(node, module)
    if name in rules.HOST_VALUES:
        return "number" if str(name).startswith("math.") else "other"
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        constexpr = dotted(node.func, module) == "triton.language.constexpr"
        if constexpr or _root(node.func) in ("float", "int"):
            _literal_kind(node.args[0], module, refusals)
            return "constexpr" if constexpr else "number"
    _refuse_literal(node, refusals)
    return "other"


def _check_container(node: ast.Tuple | ast.List | ast.Dict, module: Module, refusals: Refusals) -> None:
    items = [*node.keys, *node.values] if isinstance(node, ast.Dict) else list(node.elts)
    if not items and not isinstance(node, ast.Tuple):
        refusals.add("module-state", "an empty container can only be there to be filled", node)
    for item in items:
        if item is None:
            refusals.add("forbidden-construct", "`**` in a literal", node)
        else:
            _literal_kind(item, module, refusals)


def _refuse_literal(node: ast.expr, refusals: Refusals) -> None:
    code = (
        "module-state"
        if isinstance(node, ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)
        else "forbidden-construct"
    )
    if isinstance(node, ast.Call):
        code = "module-state" if _root(node.func) in ("dict", "list", "set", "torch") else "forbidden-call"
    if isinstance(node, ast.Name):
        code = "forbidden-name"
    refusals.add(code, f"`{ast.unparse(node)[:60]}` is not a literal", node, "module level holds literals only")


def _check_definition(function: ast.FunctionDef, module: Module, refusals: Refusals) -> None:
    """Name, decorators and parameters of a function; which kind it is."""
    if module.defines(function.name) or function.name in rules.HOST_BUILTINS or function.name.startswith("__"):
        refusals.add("module-state", f"`{function.name}` is defined twice, or hides a word of the language", function)
        return
    kernel = False
    for decorator in function.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        name = dotted(call.func if call else decorator, module)
        options = {keyword.arg for keyword in call.keywords} if call else set()
        if name == "triton.jit" and options <= rules.JIT_OPTIONS and not (call and call.args):
            kernel = True
        else:
            hint = rules.HINTS.get(name or "", "@triton.jit is the only decorator")
            refusals.add("forbidden-construct", f"decorator `{ast.unparse(decorator)[:60]}`", decorator, hint)
    (module.kernels if kernel else module.hosts)[function.name] = function
    arguments = function.args
    if arguments.vararg or arguments.kwarg:
        refusals.add("forbidden-construct", "`*` or `**` parameters", function, "name every parameter")
    for default in [*arguments.defaults, *[item for item in arguments.kw_defaults if item is not None]]:
        if isinstance(default, ast.List | ast.Dict | ast.Set | ast.Call | ast.ListComp | ast.DictComp | ast.SetComp):
            refusals.add("module-state", "a default that would survive the call", default, "numbers and strings only")
        else:
            _literal_kind(default, module, refusals)
    annotations = [a.annotation for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    for annotation in [*annotations, function.returns]:
        if annotation is not None:
            _check_annotation(annotation, module, refusals)


def _check_annotation(node: ast.expr, module: Module, refusals: Refusals) -> None:
    plain = frozenset("int float bool str tuple list dict None".split())
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and (
            part.value is None or isinstance(part.value, str) or part.value is Ellipsis
        ):
            continue
        if isinstance(part, ast.Name) and (part.id in plain or part.id in module.aliases):
            continue
        if isinstance(part, ast.Attribute) and dotted(part, module) in (
            {"torch.Tensor", "torch.dtype", "torch.device"} | rules.KERNEL_VALUES | {"triton.language"}
        ):
            continue
        if isinstance(part, ast.Subscript | ast.Tuple | ast.BinOp | ast.BitOr | ast.expr_context):
            continue
        refusals.add("forbidden-construct", f"annotation `{ast.unparse(node)[:60]}`", node)
        return


def _check_signature(host: ast.FunctionDef, task: Task, refusals: Refusals) -> None:
    """The task calls with its arguments by position."""
    positional = [*host.args.posonlyargs, *host.args.args]
    required = len(positional) - len(host.args.defaults)
    keyword_only = [
        name for name, default in zip(host.args.kwonlyargs, host.args.kw_defaults, strict=True) if default is None
    ]
    count = len(task.arguments)
    if not required <= count <= len(positional) or keyword_only:
        wanted = ", ".join(argument.name for argument in task.arguments)
        refusals.add("signature", f"called as `{task.host}({wanted})`", host, f"{count} positional parameters")


def dotted(node: ast.AST, module: Module) -> str | None:
    """Canonical dotted name of a chain that starts at an imported name; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in module.aliases:
        return None
    return ".".join([module.aliases[node.id], *reversed(parts)])


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def hidden(name: str) -> bool:
    """A dunder or private attribute."""
    return name.startswith("_")


def describe() -> str:
    """The language as Markdown: what a proposing model is shown and what ``kernel language`` prints."""

    def words(names: Iterable[str]) -> str:
        return ", ".join(f"`{name}`" for name in sorted(names))

    tl = sorted(rules.TL_NAMES - rules.DTYPE_NAMES)
    queries = words(f"x.{name}()" for name in rules.TENSOR_QUERIES)
    views = words(f"x.{name}()" for name in rules.TENSOR_VIEWS)
    return f"""# The candidate language

A candidate is one Python module: kernels (`@triton.jit`) and plain host functions, one with the name and the positional
arguments of the task. It returns fresh tensors and writes to no input. What is not listed here is refused.

## Module level
- Imports: `torch`, `triton`, `triton.language`, `math`; `from triton.language.math import …`;
  `from triton.language.extra.libdevice import …` of {words(rules.FROM_IMPORTS["triton.language.extra.libdevice"])}.
- `NAME = literal`: numbers, strings, dtypes, `tl.constexpr(...)`, and non-empty tuples, lists, dictionaries of them.
- Functions with named parameters; defaults are numbers or strings. The only decorator is `@triton.jit`.

## Host functions
- Allocation: {words(rules.ALLOCATIONS)}, `x.new_empty`, `x.new_zeros`; the device is `x.device`.
- Questions to a tensor: `x.shape`, `x.dtype`, `x.device`, `x.ndim`, {queries}.
- Views: {views}.
- Calls: {words(rules.HOST_CALLS)}; built in: {words(rules.HOST_BUILTINS)};
  `.get`, `.items`, `.keys`, `.values` of a table.
- Launch, as a statement: `kernel[grid](arguments, NAME=constexpr, num_warps=4, num_stages=2)`; the grid is a tuple or a
  lambda. Launch options: {words(rules.LAUNCH_OPTIONS)}.
- Statements: assignment to names, `if`, `for`, `return`, `assert`, `raise {"/".join(sorted(rules.HOST_EXCEPTIONS))}`.
- No arithmetic on tensors, no other torch function (`host-compute`); no `while`, `try`, `with`, `global`, classes,
  nested functions, attribute or item assignment, names that begin with `_` as attributes.

## Kernels
- `tl.`: {words(tl)}.
- `tl.math.`: {words(rules.TL_MATH)}. Dtypes: {words(rules.DTYPE_NAMES)}.
- Methods of a value: {words(rules.KERNEL_METHODS)}; attributes: {words(rules.KERNEL_ATTRIBUTES)}.
- Built in: {words(rules.KERNEL_BUILTINS)}. Loops: `for` over `range`, `tl.range`, `tl.static_range`; `while`.
- Module constants inside a kernel are `tl.constexpr`. A number never becomes a pointer. No printing, no inline
  assembly, no random numbers.

## Reason codes
{chr(10).join(f"- `{code}`: {text}" for code, text in CODES.items())}
"""
