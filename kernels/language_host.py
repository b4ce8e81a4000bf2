"""Host functions of the candidate language: which expressions may stand where, with a kind for each value.

Kinds: ``tensor`` (no arithmetic, no truth value), ``number``, ``dtype``, ``device`` (only to be handed on), ``other``.
A helper is checked at each call with the kinds of its arguments, so a tensor is known as one all the way down.
"""

from __future__ import annotations

import ast

from kernels import language_rules as rules
from kernels.language import Module, Refusals, dotted, hidden

MAX_DEPTH = 12


class HostChecker:
    """Checks host functions; ``launches`` are the kernels that reachable code launches, ``seen`` the functions."""

    def __init__(self, module: Module, refusals: Refusals) -> None:
        self.module, self.refusals = module, refusals
        self.launches: set[str] = set()
        self.seen: set[str] = set()
        self._active: list[str] = []

    def function(self, function: ast.FunctionDef, kinds: list[str]) -> str:
        """Check one function called with arguments of these kinds; the kind of its result."""
        if function.name in self._active or len(self._active) >= MAX_DEPTH:
            self.refusals.add("forbidden-construct", f"`{function.name}` calls itself", function)
            return "other"
        self._active.append(function.name)
        self.seen.add(function.name)
        names = [
            argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        ]
        scope = _Function(self, {name: kinds[i] if i < len(kinds) else "other" for i, name in enumerate(names)})
        for name in names:
            scope.bindable(name, function)
        scope.block(function.body)
        self._active.pop()
        return scope.result


class _Function:
    """One function's statements and expressions."""

    def __init__(self, checker: HostChecker, kinds: dict[str, str]) -> None:
        self.checker, self.module, self.refusals = checker, checker.module, checker.refusals
        self.kinds = kinds
        self.result = "other"

    # --- statements

    def block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            method = getattr(self, f"_do_{type(statement).__name__.lower()}", None)
            if method is None:
                self._refuse_statement(statement)
            else:
                method(statement)

    def _refuse_statement(self, statement: ast.stmt) -> None:
        name = type(statement).__name__
        hints = {
            "Try": "there is one way to compute the result", "While": "use `for` over a range",
            "With": "the judge chooses device and stream", "FunctionDef": "define functions at module level",
        }  # fmt: skip
        if isinstance(statement, ast.Global | ast.Nonlocal):
            self.refusals.add("module-state", f"`{name.lower()}`", statement, "nothing survives a call")
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            self.refusals.add("forbidden-import", "an import within a function", statement)
        else:
            self.refusals.add("forbidden-construct", f"`{name}` in a host function", statement, hints.get(name, ""))

    def _do_pass(self, statement: ast.Pass) -> None: ...
    def _do_break(self, statement: ast.Break) -> None: ...
    def _do_continue(self, statement: ast.Continue) -> None: ...

    def _do_expr(self, statement: ast.Expr) -> None:
        value = statement.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Subscript):
            self._launch(value)
        elif isinstance(value, ast.Call):
            self.expression(value)
        else:
            self.expression(value)
            self.refusals.add("forbidden-construct", "an expression whose value goes nowhere", statement)

    def _do_assign(self, statement: ast.Assign) -> None:
        kind = self.expression(statement.value)
        for target in statement.targets:
            self._bind(target, kind, statement.value)

    def _do_annassign(self, statement: ast.AnnAssign) -> None:
        kind = self.expression(statement.value) if statement.value is not None else "other"
        self._bind(statement.target, kind, statement.value)

    def _do_augassign(self, statement: ast.AugAssign) -> None:
        kind = self.expression(statement.value)
        if isinstance(statement.target, ast.Name):
            self._no_tensor(self.kinds.get(statement.target.id, "other"), statement)
            self._no_tensor(kind, statement)
        self._bind(statement.target, kind, statement.value)

    def _do_return(self, statement: ast.Return) -> None:
        if statement.value is not None:
            kind = self.expression(statement.value)
            self.result = kind if self.result != "tensor" else "tensor"

    def _do_if(self, statement: ast.If) -> None:
        self._no_tensor(self.expression(statement.test), statement)
        self.block(statement.body)
        self.block(statement.orelse)

    def _do_for(self, statement: ast.For) -> None:
        kind = self.expression(statement.iter)
        self._no_tensor(kind, statement)
        self._bind(statement.target, "other", None)
        self.block(statement.body)
        self.block(statement.orelse)

    def _do_assert(self, statement: ast.Assert) -> None:
        self._no_tensor(self.expression(statement.test), statement)
        if statement.msg is not None:
            self.expression(statement.msg)

    def _do_raise(self, statement: ast.Raise) -> None:
        error = statement.exc
        call = error if isinstance(error, ast.Call) else None
        name = call.func if call else error
        if not isinstance(name, ast.Name) or name.id not in rules.HOST_EXCEPTIONS or statement.cause is not None:
            self.refusals.add("forbidden-construct", "raise of anything but a plain error", statement)
        for argument in call.args if call else []:
            self.expression(argument)

    def _bind(self, target: ast.expr, kind: str, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            if self.bindable(target.id, target):
                # a name that was a tensor on some path stays one: branches join here
                self.kinds[target.id] = "tensor" if self.kinds.get(target.id) == "tensor" and kind == "other" else kind
        elif isinstance(target, ast.Tuple | ast.List):
            parts = (
                value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else None
            )
            for place, item in enumerate(target.elts):
                inner = item.value if isinstance(item, ast.Starred) else item
                part = self._quiet(parts[place]) if parts else "tensor" if kind == "tensor" else "other"
                self._bind(inner, part, parts[place] if parts else None)
        else:
            base = target
            while isinstance(base, ast.Subscript | ast.Attribute):
                base = base.value
            name = base.id if isinstance(base, ast.Name) else ""
            if self.kinds.get(name) == "tensor" and isinstance(target, ast.Subscript):
                self.refusals.add("host-compute", f"`{ast.unparse(target)[:60]} = …` writes to a tensor", target)
            elif self.module.defines(name) or isinstance(target, ast.Attribute):
                detail = f"`{ast.unparse(target)[:60]} = …` would survive the call"
                self.refusals.add("module-state", detail, target, "bind local names only")
            else:
                self.refusals.add("forbidden-construct", "assignment to an item", target, "bind local names only")

    def bindable(self, name: str, node: ast.AST) -> bool:
        """A local name may hide nothing of the module or the language."""
        if name in rules.HOST_BUILTINS or self.module.defines(name) or name.startswith("__"):
            self.refusals.add(
                "forbidden-name", f"`{name}` as a local name hides a word of the language or module", node
            )
            return False
        return True

    # --- expressions: each returns a kind

    def _quiet(self, node: ast.expr) -> str:
        """Kind of an expression that has been checked already."""
        scope = _Function(self.checker, dict(self.kinds))
        scope.refusals = Refusals()
        return scope.expression(node)

    def _no_tensor(self, kind: str, node: ast.AST) -> str:
        if kind == "tensor":
            self.refusals.add(
                "host-compute", "an operation on a tensor outside of a kernel", node, "compute it in a kernel"
            )
        elif kind == "device":
            self.refusals.add("forbidden-construct", "a device is only handed on, never looked at", node)
        return "number"

    def expression(self, node: ast.expr) -> str:
        method = getattr(self, f"_is_{type(node).__name__.lower()}", None)
        if method is None:
            name = type(node).__name__
            code = "module-state" if name == "NamedExpr" else "forbidden-construct"
            self.refusals.add(code, f"`{name}` in a host function", node)
            return "other"
        kind = method(node)
        assert isinstance(kind, str)
        return kind

    def _is_constant(self, node: ast.Constant) -> str:
        if not isinstance(node.value, int | float | str | None):
            self.refusals.add("forbidden-construct", f"constant {node.value!r}", node)
        return "number" if isinstance(node.value, int | float) else "other"

    def _is_name(self, node: ast.Name) -> str:
        name = node.id
        if name in self.kinds:
            return self.kinds[name]
        if name in self.module.constants:
            return "number" if self.module.constants[name] == "number" else "other"
        if self.module.aliases.get(name) in rules.HOST_VALUES:
            return "dtype"
        if name in self.module.kernels:
            self.refusals.add("forbidden-name", f"kernel `{name}` is launched, not passed around", node)
        elif name in self.module.hosts or name in self.module.aliases or name in rules.HOST_BUILTINS:
            self.refusals.add("forbidden-name", f"`{name}` is called or looked into, not passed around", node)
        else:
            self.refusals.add(
                "forbidden-name", f"`{name}` is not defined in the language", node, rules.HINTS.get(name, "")
            )
        return "other"

    def _is_attribute(self, node: ast.Attribute) -> str:
        name = dotted(node, self.module)
        if name is not None:
            if name in rules.HOST_VALUES:
                return "number" if name.startswith("math.") else "dtype"
            self.refusals.add("forbidden-name", f"`{name}`", node, rules.HINTS.get(name, ""))
            return "other"
        kind = self.expression(node.value)
        limits = isinstance(node.value, ast.Call) and dotted(node.value.func, self.module) in (
            "torch.finfo",
            "torch.iinfo",
        )
        if hidden(node.attr):
            self.refusals.add("forbidden-name", f"attribute `{node.attr}`", node, "no private or dunder names")
        elif node.attr not in rules.HOST_ATTRIBUTES and not (limits and node.attr in rules.LIMIT_ATTRIBUTES):
            self.refusals.add("forbidden-name", f"attribute `{node.attr}`", node, rules.HINTS.get(node.attr, ""))
        if node.attr in ("T", "mT") and kind == "tensor":
            return "tensor"
        return {"device": "device", "dtype": "dtype", "ndim": "number", "itemsize": "number"}.get(node.attr, "other")

    def _is_call(self, node: ast.Call) -> str:
        function = node.func
        if isinstance(function, ast.Subscript):
            self._launch(node)
            self.refusals.add("forbidden-construct", "a launch is a statement of its own", node)
            return "other"
        name = dotted(function, self.module)
        if name is not None:
            return self._module_call(name, node)
        if isinstance(function, ast.Name):
            return self._plain_call(function.id, node)
        if isinstance(function, ast.Attribute):
            return self._method_call(function, node)
        self.refusals.add("forbidden-call", "a call of an expression", node)
        self._arguments(node)
        return "other"

    def _arguments(self, node: ast.Call) -> list[str]:
        kinds = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                self.refusals.add("forbidden-construct", "`*` in a call", node, "name every argument")
            else:
                kinds.append(self.expression(argument))
        kinds.extend(self.expression(keyword.value) for keyword in node.keywords)
        return kinds

    def _module_call(self, name: str, node: ast.Call) -> str:
        kinds = self._arguments(node)
        if name in rules.ALLOCATIONS:
            self._allocation(node)
            return "tensor"
        if name in rules.HOST_CALLS:
            if "tensor" in kinds:
                self._no_tensor("tensor", node)
            return "number" if name.startswith(("math.", "triton.")) else "other"
        first = name.split(".")[1] if "." in name else name
        compute = name.startswith("torch.") and (first not in rules.TORCH_NOT_COMPUTE or name.startswith("torch.ops."))
        hint = rules.HINTS.get(name, "compute it in a kernel" if compute else "")
        self.refusals.add("host-compute" if compute else "forbidden-call", f"`{name}`", node, hint)
        return "other"

    def _allocation(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg not in ("dtype", "device", "size", "fill_value", "stride", "memory_format"):
                self.refusals.add("forbidden-call", f"keyword `{keyword.arg}` of an allocation", node)
            elif keyword.arg == "device" and isinstance(keyword.value, ast.Constant):
                self.refusals.add("forbidden-call", "a device by name", node, "use the device of an argument: x.device")

    def _plain_call(self, name: str, node: ast.Call) -> str:
        kinds = self._arguments(node)
        if name in self.kinds:
            self.refusals.add("forbidden-call", f"call of the local `{name}`", node)
        elif name in self.module.hosts:
            ordered = kinds[: len(node.args)]
            function = self.module.hosts[name]
            names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
            by_name = dict(zip(names, ordered, strict=False))
            for keyword, kind in zip(node.keywords, kinds[len(node.args) :], strict=False):
                by_name[keyword.arg or ""] = kind
            return self.checker.function(function, [by_name.get(parameter, "other") for parameter in names])
        elif name in self.module.kernels:
            self.refusals.add("forbidden-call", f"kernel `{name}` is called without a grid", node, f"{name}[grid](...)")
        elif name in rules.HOST_BUILTINS:
            if "tensor" in kinds and name not in ("len", "tuple", "list", "zip", "enumerate"):
                self._no_tensor("tensor", node)
            return "other" if name in ("tuple", "list", "zip", "enumerate", "divmod", "range") else "number"
        elif self.module.aliases.get(name) in rules.HOST_CALLS:
            return "number"
        else:
            known = name in _REFUSED_BUILTINS
            detail = f"`{name}`" if known else f"`{name}` is not defined in the language"
            self.refusals.add("forbidden-call" if known else "forbidden-name", detail, node, rules.HINTS.get(name, ""))
        return "other"

    def _method_call(self, function: ast.Attribute, node: ast.Call) -> str:
        kind = self.expression(function.value)
        self._arguments(node)
        name = function.attr
        if hidden(name):
            self.refusals.add("forbidden-name", f"method `{name}`", node, "no private or dunder names")
        elif name in rules.TENSOR_QUERIES:
            return "number" if name != "size" or node.args else "other"
        elif name in rules.TENSOR_VIEWS:
            return "tensor"
        elif name in rules.TENSOR_ALLOCATIONS:
            self._allocation(node)
            return "tensor"
        elif name in rules.TABLE_METHODS and kind != "tensor":
            return "other"
        elif name in rules.MUTATORS:
            self.refusals.add("module-state", f"`.{name}()` changes an object", node, "nothing survives a call")
        elif kind == "tensor":
            hint = rules.HINTS.get(name, "compute it in a kernel")
            self.refusals.add("host-compute", f"`.{name}()` of a tensor", node, hint)
        else:
            self.refusals.add("forbidden-call", f"method `.{name}()`", node, rules.HINTS.get(name, ""))
        return "other"

    def _launch(self, node: ast.Call) -> None:
        """kernel[grid](arguments)."""
        assert isinstance(node.func, ast.Subscript)
        base, grid = node.func.value, node.func.slice
        if isinstance(base, ast.Name) and base.id in self.module.kernels and base.id not in self.kinds:
            self.checker.launches.add(base.id)
            self.module.launched.add(base.id)
        else:
            self.refusals.add("forbidden-call", "a launch of something that is not a kernel of this module", node)
        self._no_tensor(self.expression(grid), grid)
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                self.refusals.add("forbidden-construct", "`*` in a launch", node, "name every argument")
            else:
                self.expression(argument)
        for keyword in node.keywords:
            if keyword.arg == "warmup":
                self.refusals.add("forbidden-call", "`warmup` in a launch", node)
            self.expression(keyword.value)

    def _is_binop(self, node: ast.BinOp) -> str:
        kinds = [self.expression(node.left), self.expression(node.right)]
        for kind in kinds:
            self._no_tensor(kind, node)
        return "number" if "number" in kinds else "other"

    def _is_unaryop(self, node: ast.UnaryOp) -> str:
        return self._no_tensor(self.expression(node.operand), node)

    def _is_boolop(self, node: ast.BoolOp) -> str:
        for value in node.values:
            self._no_tensor(self.expression(value), node)
        return "number"

    def _is_compare(self, node: ast.Compare) -> str:
        identity = all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
        for value in (node.left, *node.comparators):
            kind = self.expression(value)
            if not identity:
                self._no_tensor(kind, node)
        return "number"

    def _is_ifexp(self, node: ast.IfExp) -> str:
        self._no_tensor(self.expression(node.test), node)
        kinds = {self.expression(node.body), self.expression(node.orelse)}
        return "tensor" if "tensor" in kinds else kinds.pop() if len(kinds) == 1 else "other"

    def _is_subscript(self, node: ast.Subscript) -> str:
        kind = self.expression(node.value)
        index = self.expression(node.slice)
        if kind == "tensor" and index in ("tensor", "device"):
            self._no_tensor(index, node)
        return "tensor" if kind == "tensor" else "other"

    def _is_slice(self, node: ast.Slice) -> str:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self._no_tensor(self.expression(part), node)
        return "other"

    def _is_tuple(self, node: ast.Tuple | ast.List) -> str:
        kinds = [self.expression(item.value if isinstance(item, ast.Starred) else item) for item in node.elts]
        # a tuple of tensors is unpacked into tensors
        return "other" if "tensor" not in kinds or len(set(kinds)) > 1 else "tensors"

    _is_list = _is_tuple

    def _is_dict(self, node: ast.Dict) -> str:
        for item in (*node.keys, *node.values):
            if item is None:
                self.refusals.add("forbidden-construct", "`**` in a literal", node)
            else:
                self.expression(item)
        return "other"

    def _is_joinedstr(self, node: ast.JoinedStr) -> str:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self._no_tensor(self.expression(part.value), node)
        return "other"

    def _is_lambda(self, node: ast.Lambda) -> str:
        """Only useful as a grid: parameters are the launch's constexprs."""
        if node.args.defaults or node.args.vararg or node.args.kwarg or node.args.kwonlyargs:
            self.refusals.add("module-state", "a lambda with defaults", node)
        scope = _Function(self.checker, self.kinds | {argument.arg: "other" for argument in node.args.args})
        scope.refusals = self.refusals
        scope.expression(node.body)
        return "other"

    def _is_generatorexp(self, node: ast.GeneratorExp | ast.ListComp) -> str:
        scope = _Function(self.checker, dict(self.kinds))
        scope.refusals = self.refusals
        for loop in node.generators:
            scope._no_tensor(scope.expression(loop.iter), node)
            scope._bind(loop.target, "other", None)
            for condition in loop.ifs:
                scope.expression(condition)
        scope.expression(node.elt)
        return "other"

    _is_listcomp = _is_generatorexp


_REFUSED_BUILTINS = frozenset(
    "print open eval exec compile getattr setattr delattr hasattr globals locals vars dir type isinstance input id "
    "__import__ super object memoryview bytearray bytes map filter iter next repr str callable hash breakpoint".split()
)
