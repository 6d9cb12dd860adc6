"""Examples of request ids that are accepted and refused, by header."""

INFERENCE, TRACE = "X-Amzn-SageMaker-Inference-Id", "X-Amzn-Trace-Id"
NAMED = "X-Request-Id"


ROOT = "Root=1-5759e988-bd862e3fe1be46a994272793"


ACCEPTED = [
    (INFERENCE, "mine-1"),
    (INFERENCE, "a b"),
    (INFERENCE, "x" * 64),
    (INFERENCE, "{order: 17}"),
    (NAMED, "0d1bdf8e-8c7f-4d0c-9a39-1f0d3d3e7a11"),
    (NAMED, "x" * 128),
    (TRACE, ROOT),
    (TRACE, f"{ROOT};Parent=53995c3f42cd8ad8;Sampled=1"),
    (TRACE, f"{ROOT};Sampled=?"),
    (TRACE, f"Self=1-67891234-12456789abcdef012345678;{ROOT}"),
    (TRACE, f"{ROOT};Parent=4bf92f3577b34da6;Sampled=0;Lineage=a87bd80c:1|68fd508a:5|c512fbe3:2"),
    (TRACE, f"{ROOT};CalledFrom=app"),
]


REFUSED = [
    (INFERENCE, "x" * 65),
    (INFERENCE, 'a"b'),
    (INFERENCE, "a\\b"),
    (INFERENCE, "grüße"),
    (NAMED, "x" * 129),
    (NAMED, 'a","level":"error'),
    (NAMED, "a\\u0000"),
    (NAMED, "a\tb"),
    (TRACE, "mine-1"),
    (TRACE, "Root=1-2"),
    (TRACE, f"{ROOT} forged"),
    (TRACE, f"{ROOT}; Sampled=1"),
    (TRACE, "request served by someone else"),
    (TRACE, f"{ROOT}0"),
    (TRACE, f"{ROOT};"),
    (TRACE, f"{ROOT};" + "Field=0123456789;" * 7 + "Field=1"),
    (TRACE, ROOT + ";Field=" + "x" * 65),
    (TRACE, ROOT.replace("b", "g")),
]
