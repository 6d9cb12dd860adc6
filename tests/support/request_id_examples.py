"""Examples of request ids that are accepted and refused, by header."""

INFERENCE, TRACE = "X-Amzn-SageMaker-Inference-Id", "X-Amzn-Trace-Id"
NAMED = "X-Request-Id"
ROOT = "Root=1-5759e988-bd862e3fe1be46a994272793"
ACCEPTED = [
    *((INFERENCE, text) for text in ("mine-1", "a b", "x" * 64, "{order: 17}")),
    *((NAMED, text) for text in ("0d1bdf8e-8c7f-4d0c-9a39-1f0d3d3e7a11", "x" * 128)),
    (TRACE, ROOT),
    (TRACE, f"{ROOT};Parent=53995c3f42cd8ad8;Sampled=1"),
    (TRACE, f"{ROOT};Sampled=?"),
    (TRACE, f"Self=1-67891234-12456789abcdef012345678;{ROOT}"),
    (TRACE, f"{ROOT};Parent=4bf92f3577b34da6;Sampled=0;Lineage=a87bd80c:1|68fd508a:5|c512fbe3:2"),
    (TRACE, f"{ROOT};CalledFrom=app"),
]
REFUSED = [
    *((INFERENCE, text) for text in ("x" * 65, 'a"b', "a\\b", "grüße")),
    *((NAMED, text) for text in ("x" * 129, 'a","level":"error', "a\\u0000", "a\tb")),
    *((TRACE, text) for text in ("mine-1", "Root=1-2", "request served by someone else")),
    *((TRACE, f"{ROOT}{end}") for end in (" forged", "; Sampled=1", "0", ";")),
    (TRACE, f"{ROOT};" + "Field=0123456789;" * 7 + "Field=1"),
    (TRACE, f"{ROOT};Field=" + "x" * 65),
    (TRACE, ROOT.replace("b", "g")),
]
