"""Kernels of the candidate language: names and forms of ``triton.language`` that a ``@triton.jit`` function may use."""

from __future__ import annotations

import ast
import builtins

from kernels import language_rules as rules
from kernels.language import Module, Refusals, dotted, hidden

_EXPRESSIONS = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Slice, ast.Constant, ast.Name,
    ast.Attribute, ast.Call, ast.Subscript,
)  # fmt: skip


def check_kernel(function: ast.FunctionDef, module: Module, refusals: Refusals) -> None:
    """Refuse what a kernel may not hold."""
    _Kernel(function, module, refusals).check()


class _Kernel:
    def __init__(self, function: ast.FunctionDef, module: Module, refusals: Refusals) -> None:
        self.function, self.module, self.refusals = function, module, refusals
        arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        self.parameters = {argument.arg for argument in arguments}
        self.constexprs = {
            argument.arg
            for argument in arguments
            if argument.annotation is not None and "constexpr" in ast.unparse(argument.annotation)
        }
        stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.names = self.parameters | stored
        for name in sorted(self.names):
            reserved = name in rules.KERNEL_BUILTINS or name.startswith("__")
            if reserved or name in module.aliases or name in module.kernels or name in module.hosts:
                refusals.add(
                    "forbidden-name", f"`{name}` as a local name hides a word of the language or module", function
                )

    def check(self) -> None:
        self._block(self.function.body)

    # --- statements

    def _block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._target(target)
            if node.value is not None:
                self._expression(node.value)
        elif isinstance(node, ast.If | ast.While):
            self._expression(node.test)
            self._block(node.body)
            self._block(node.orelse)
        elif isinstance(node, ast.For):
            self._loop(node)
        elif isinstance(node, ast.Return | ast.Assert):
            value = node.value if isinstance(node, ast.Return) else node.test
            if value is not None:
                self._expression(value)
        elif isinstance(node, ast.Expr):
            if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
                self._expression(node.value)
        elif not isinstance(node, ast.Pass):
            self._refuse_statement(node)

    def _refuse_statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Global | ast.Nonlocal):
            self.refusals.add("module-state", "`global` in a kernel", node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.refusals.add("forbidden-import", "an import within a function", node)
        else:
            hint = "Triton has no break or continue: mask instead" if isinstance(node, ast.Break | ast.Continue) else ""
            self.refusals.add("forbidden-construct", f"`{type(node).__name__}` in a kernel", node, hint)

    def _target(self, node: ast.expr) -> None:
        if isinstance(node, ast.Tuple | ast.List):
            for item in node.elts:
                self._target(item)
        elif not isinstance(node, ast.Name):
            self.refusals.add("forbidden-construct", "assignment to an item or attribute", node, "use tl.store")

    def _loop(self, node: ast.For) -> None:
        call = node.iter
        name = ""
        if isinstance(call, ast.Call):
            name = call.func.id if isinstance(call.func, ast.Name) else dotted(call.func, self.module) or ""
        if name not in rules.KERNEL_LOOPS:
            self.refusals.add("forbidden-construct", "a loop over something else than a range", node)
        self._target(node.target)
        self._expression(node.iter)
        self._block(node.body)
        self._block(node.orelse)

    # --- expressions

    def _expression(self, node: ast.expr) -> None:
        if not isinstance(node, _EXPRESSIONS):
            self.refusals.add("forbidden-construct", f"`{type(node).__name__}` in a kernel", node)
        elif isinstance(node, ast.Constant):
            if not isinstance(node.value, int | float | str | None) and node.value is not Ellipsis:
                self.refusals.add("forbidden-construct", f"constant {node.value!r}", node)
        elif isinstance(node, ast.Name):
            self._name(node)
        elif isinstance(node, ast.Attribute):
            self._attribute(node)
        elif isinstance(node, ast.Call):
            self._call(node)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self._expression(child)

    def _name(self, node: ast.Name) -> None:
        name = node.id
        if name in self.names:
            return
        if name in self.module.constants:
            if self.module.constants[name] != "constexpr":
                hint = f"{name} = tl.constexpr(...)"
                self.refusals.add("forbidden-name", f"global `{name}` in a kernel is not a tl.constexpr", node, hint)
        elif name in self.module.kernels or self.module.aliases.get(name) in rules.KERNEL_VALUES:
            return  # a kernel may be handed to tl.reduce or tl.associative_scan
        elif name in ("float", "int", "bool"):
            return
        else:
            known = self.module.defines(name)
            detail = f"`{name}` inside a kernel" if known else f"`{name}` is not defined in the language"
            self.refusals.add("forbidden-name", detail, node, rules.HINTS.get(name, ""))

    def _attribute(self, node: ast.Attribute) -> None:
        name = dotted(node, self.module)
        if name is not None:
            if name not in rules.KERNEL_VALUES:
                code = "forbidden-call" if name in rules.HINTS else "forbidden-name"
                self.refusals.add(code, f"`{name}` as a value", node, rules.HINTS.get(name, ""))
            return
        if hidden(node.attr):
            self.refusals.add("forbidden-name", f"attribute `{node.attr}`", node, "no private or dunder names")
        elif node.attr not in rules.KERNEL_ATTRIBUTES:
            self.refusals.add("forbidden-name", f"attribute `{node.attr}`", node)
        self._expression(node.value)

    def _call(self, node: ast.Call) -> None:
        function = node.func
        name = dotted(function, self.module)
        if name is not None:
            if name not in rules.KERNEL_CALLS:
                torch_like = name.startswith("torch.")
                code = "forbidden-call" if not torch_like else "host-compute"
                self.refusals.add(code, f"`{name}` in a kernel", node, rules.HINTS.get(name, ""))
            if name == "triton.language.cast" and len(node.args) > 1:
                self._cast(node.args[1])
        elif isinstance(function, ast.Name):
            self._plain_call(function, node)
        elif isinstance(function, ast.Attribute):
            self._method_call(function, node)
        else:
            self.refusals.add("forbidden-call", "a call of an expression", node)
        for argument in node.args:
            self._expression(argument)
        for keyword in node.keywords:
            if keyword.arg is None:
                self.refusals.add("forbidden-construct", "`**` in a call", node)
            elif hidden(keyword.arg):
                self.refusals.add("forbidden-name", f"keyword `{keyword.arg}`", node)
            self._expression(keyword.value)

    def _method_call(self, function: ast.Attribute, node: ast.Call) -> None:
        if hidden(function.attr):
            self.refusals.add("forbidden-name", f"method `{function.attr}`", node, "no private or dunder names")
        elif function.attr not in rules.KERNEL_METHODS:
            self.refusals.add("forbidden-call", f"method `.{function.attr}()` in a kernel", node)
        if function.attr in ("to", "cast") and node.args:
            self._cast(node.args[0])
        self._expression(function.value)

    def _plain_call(self, function: ast.Name, node: ast.Call) -> None:
        name = function.id
        if name in self.names:
            self.refusals.add("forbidden-call", f"call of the local `{name}`", node)
        elif name in self.module.hosts:
            self.refusals.add("forbidden-call", f"host function `{name}` in a kernel", node, "add @triton.jit")
        elif name in self.module.kernels or name in rules.KERNEL_BUILTINS:
            return
        elif self.module.aliases.get(name) not in rules.KERNEL_CALLS:
            known = hasattr(builtins, name)
            detail = f"`{name}` in a kernel" if known else f"`{name}` is not defined in the language"
            self.refusals.add("forbidden-call" if known else "forbidden-name", detail, node, rules.HINTS.get(name, ""))

    def _cast(self, wanted: ast.expr) -> None:
        """A cast to the type of a pointer argument would turn a number into an address."""
        if self.function.name not in self.module.launched:
            return
        if (
            isinstance(wanted, ast.Attribute)
            and wanted.attr in ("dtype", "type")
            and isinstance(wanted.value, ast.Name)
        ):
            name = wanted.value.id
            if name in self.parameters - self.constexprs:
                hint = rules.HINTS["triton.language.pointer_type"]
                self.refusals.add("forbidden-call", f"a cast to the type of argument `{name}`", wanted, hint)
