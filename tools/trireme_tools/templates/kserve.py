"""The deployment for KServe: the files of ``deploy/kserve``, filled from options."""

from __future__ import annotations

from trireme_tools.templates import kubernetes
from trireme_tools.templates.kubernetes import CPU_PERCENT, Document, resources
from trireme_tools.templates.stack import Stack

#: The label that both documents have instead of Kubernetes' own.
DEPLOYMENT = "trireme/deployment"
#: Where KServe unpacks the archive of ``storageUri``.
REPOSITORY = "TRIREME_MODEL_REPOSITORY"


def template(stack: Stack) -> list[Document]:
    """Return the documents. Raises :class:`CommandError` for options that only SageMaker has."""
    kubernetes.check(stack, fetches=True)
    plan, values = stack.plan, kubernetes.values(stack)
    runtime, service = (
        kubernetes.read(f"kserve/{name}.yaml", plan.name) for name in ("servingruntime", "inferenceservice")
    )
    for document in (runtime, service):
        document["metadata"]["labels"][DEPLOYMENT] = plan.name
    (container,) = runtime["spec"]["containers"]
    fetched = [variable for variable in container["env"] if variable["name"] == REPOSITORY]
    container["env"] = [variable for variable in container["env"] if variable["name"] != REPOSITORY]
    kubernetes.fill_container(container, values)
    container["resources"] = resources(stack)
    predictor = service["spec"]["predictor"]
    predictor["terminationGracePeriodSeconds"] = kubernetes.grace_seconds(values)
    predictor["model"].update(runtime=plan.name, storageUri=plan.data)
    if plan.data:
        container["env"] += fetched
    else:
        del predictor["model"]["storageUri"]
    scaling = stack.scaling
    predictor["minReplicas"] = scaling.least if scaling else plan.count
    predictor["maxReplicas"] = scaling.most if scaling else plan.count
    if scaling:
        # As percent of a pod's requested CPU: Kubernetes does not count requests.
        targets = {target.kind: target.value for target in scaling.targets}
        predictor.update(scaleMetric="cpu", scaleTarget=round(targets.get("cpu", CPU_PERCENT)))
    return [runtime, service]
