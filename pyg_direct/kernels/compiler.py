"""numba's compiler without the work that kernels free of reference counts have no use for.

numba compiles every function as if Python were to call it, and as if it could raise, count
references and be debugged: a helper gets machine code of its own, which nobody calls, and is
optimised twice before the kernels that it is linked into are optimised again. Here a helper ends as
LLVM code as numba wrote it, and a kernel is optimised once, with all of its helpers in it. numba's
passes and classes are extended by its own means (`pipeline_class`), and what a version of numba
lacks is left as it is.
"""

# mypy: disable-error-code="attr-defined,misc,no-untyped-call"

from __future__ import annotations

from typing import Any

from llvmlite import binding as llvm
from numba import _dynfunc
from numba.core import cgutils, codegen, compiler, typed_passes
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower

# Of what no kernel here has: closures, `with` blocks, raised messages, unrolled tuples, expressions
# of whole arrays. A kernel that needs one of them does not compile.
PASSES_LEFT_OUT = {
    "AnnotateTypes",
    "DumpParforDiagnostics",
    "FindLiterallyCalls",
    "InlineClosureLikes",
    "InlineOverloads",
    "LiteralPropagationSubPipelinePass",
    "LiteralUnroll",
    "MakeFunctionToJitFunction",
    "NoPythonSupportedFeatureValidation",
    "NopythonRewrites",
    "RewriteDynamicRaises",
    "WithLifting",
}


class _Library(codegen.JITCodeLibrary):
    """LLVM code and machine code of a kernel."""

    def add_ir_module(self, ir_module: Any) -> None:
        """Add a function, or the wrapper that turns Python's objects into its arguments.

        The wrapper is half of the code of a short kernel, and calls take as long when LLVM leaves
        it as it is.
        """
        if ir_module.name == "wrapper":
            for function in ir_module.functions:
                if function.blocks:
                    function.attributes.add("noinline")  # LLVM demands it beside `optnone`
                    function.attributes.add("optnone")
        super().add_ir_module(ir_module)

    if hasattr(codegen.CPUCodegen, "_pass_builder"):  # LLVM's new pass managers

        def _optimize_functions(self, ll_module: Any) -> None:
            """Do nothing but what LLVM needs: the whole library is optimised at the end."""
            ll_module.data_layout = self._codegen._data_layout

        def _optimize_final_module(self) -> None:
            """Optimise once: what numba does before that only helps to remove references.

            Loops are not unrolled: kernels wait for memory, and did not run faster for it, but
            LLVM took a quarter longer.
            """
            tuning = llvm.create_pipeline_tuning_options(speed_level=3)
            tuning.loop_vectorization = True
            tuning.loop_unrolling = tuning.loop_interleaving = False
            builder = llvm.create_pass_builder(self._codegen._tm, tuning)
            manager = builder.getModulePassManager()
            with self._recorded_timings.record("Module passes", builder):
                manager.run(self._final_module, builder)


class _HelperLibrary(_Library):
    """LLVM code of a helper, for the kernels that it is linked into."""

    def finalize(self) -> None:
        """Bring the code together, and make no machine code of it."""
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


class _Lower(Lower):
    """From numba's code to LLVM's, without asking LLVM for the size of every variable.

    Only debuggers are told of it, and LLVM has to parse a module for each.
    """

    def storevar(self, value: Any, name: str, argidx: Any = None) -> None:
        """Store a variable. What `argidx` is for beside debugging, references, is not there."""
        super().storevar(value, name)

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:
        """Make room for a variable."""
        return cgutils.alloca_once(self.builder, lltype, name=name)


class _KernelLowering(typed_passes.NativeLowering):
    """From numba's code to machine code."""

    _name = "pyg_direct_kernel_lowering"
    lowering_class = _Lower
    library_class: type[_Library] = _Library

    def run_pass(self, state: Any) -> bool:
        """Compile into a library of our own kind."""
        state.library = self.library_class(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


class _HelperLowering(_KernelLowering):
    """From numba's code to LLVM's."""

    _name = "pyg_direct_helper_lowering"
    library_class = _HelperLibrary

    def run_pass(self, state: Any) -> bool:
        """Make a helper known to the kernels that are compiled after it.

        numba knows a function by the object that Python would call; this one has no code.
        """
        state.flags.no_compile = True
        super().run_pass(state)
        result = state["cr"]
        name, module = result.fndesc.qualname, result.fndesc.lookup_module()
        function = _dynfunc.make_function(module, name, "", 0, result.env, (state.library,))
        state["cr"] = result._replace(cfunc=function)
        state.targetctx.insert_user_function(function, result.fndesc, [state.library])
        return True


for _pass in (_KernelLowering, _HelperLowering):
    register_pass(mutates_CFG=True, analysis_only=False)(_pass)


class KernelCompiler(compiler.CompilerBase):
    """Compiles a kernel that counts no references."""

    lowering: type[_KernelLowering] = _KernelLowering

    def define_pipelines(self) -> list[Any]:
        """Return numba's passes, with our lowering and without those that find nothing to do."""
        manager = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [
            (self.lowering if item is typed_passes.NativeLowering else item, text)
            for item, text in manager.passes
            if item.__name__ not in PASSES_LEFT_OUT
        ]
        manager._ENFORCING = False  # leaves out numba's checks of its own passes
        manager.finalize()  # once more, as the passes changed
        return [manager]


class HelperCompiler(KernelCompiler):
    """Compiles a function that only such kernels call."""

    lowering = _HelperLowering
