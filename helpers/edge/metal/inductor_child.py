"""Prints what Inductor writes for an expression of x on MPS, as JSON: run as `-m`, EXPRESSION ROWS COLUMNS."""

import json
import sys


def generate(expression: str, rows: int, columns: int) -> dict:
    """The wrapper that Inductor writes for `expression`, an expression of torch and x (rows, columns) fp32."""
    code = compile(f"lambda x: {expression}", "program", "eval")  # first: importing torch takes seconds
    import torch
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    torch._C._mps_get_core_count = lambda: 10  # asked of the GPU, which is not there
    function = eval(code, {"torch": torch})
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        x = torch.empty(rows, columns, device="mps")
        traced = make_fx(function, decomposition_table=select_decomp_table())(x)
    graph = GraphLowering(traced, example_inputs=[x], is_inference=True)
    with V.set_graph_handler(graph), V.set_fake_mode(mode), V.set_debug_handler(DebugContext()):
        graph.run(x)
        wrapper, _ = graph.codegen()
    return {"wrapper": getattr(wrapper, "value", wrapper), "torch": torch.__version__}


if __name__ == "__main__":
    print(json.dumps(generate(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
