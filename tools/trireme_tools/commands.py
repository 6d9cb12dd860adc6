"""The commands that this distribution adds to ``sm``, in the groups of its help."""

from __future__ import annotations

from sm.commands import Command

#: An image in the examples.
IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/trireme:1"


#: The entry point ``sm.commands`` names this table.
GROUPS = {
    "Build models and clients": {
        "new-client": Command(
            "Write the files of a new client: for the model in model/NAME, or with an identity model.",
            "trireme_tools.scaffold.arguments",
            ("new-client pets", "new-client review --kind text"),
        ),
        "new-model": Command(
            "Write model/NAME for a common task, which is served without a client file.",
            "trireme_tools.scaffold.arguments:add_model_arguments trireme_tools.scaffold.new_model:run",
            (
                "new-model cats --from cats.onnx --task image-classification --labels labels.txt",
                "new-model mood --from hf://owner/name",
            ),
        ),
        "eject": Command(
            "Write the client of a model that has none, to change it.",
            "trireme_tools.scaffold.arguments:add_eject_arguments trireme_tools.scaffold.new_model:eject",
            ("eject mood", "eject mood --into team"),
        ),
        "pack-env": Command(
            "Build a Python environment for one Python model.",
            "trireme_tools.environments.pack_env",
            (
                "pack-env sentiment --requirements requirements.txt",
                "pack-env sentiment --conda environment.yml -o model/sentiment/env.tar.gz",
            ),
        ),
        "package": Command(
            "Pack a model repository for S3: one archive, or one archive per model.",
            "trireme_tools.package.package_command",
            ("package model --clients clients", "package model --mme --out archives"),
        ),
        "clean": Command(
            "Show what the cache of downloads and built models holds, and free it.",
            "trireme_tools.clean_cache",
            ("clean", "clean --all"),
        ),
    },
    "Check them": {
        "check-client": Command(
            "Test a client: golden answer, bad payloads, threads, memory, and time per stage.",
            "trireme_tools.check.check_client",
            ("check-client pets", "check-client --all --url http://localhost:8080"),
        ),
        "invoke": Command(
            "Send requests to an endpoint, a URL or the local box, once or many times.",
            "trireme_tools.invoke.invoke_command:add_arguments trireme_tools.deploy.invoke_endpoint:run",
            (
                "invoke --model resnet --image cat.jpg",
                "invoke my-endpoint --json request.json -n 100 -c 8",
            ),
        ),
        "tune": Command(
            "Find a model's best instance count and dynamic batching by measuring them on this machine.",
            "trireme_tools.tune.tune_command",
            ("tune resnet --p99 200ms", "tune resnet --from tune-resnet/sweep.json --apply"),
        ),
    },
    "Run a box": {
        "push": Command(
            "Let a running box replace a model by its new version, without a lost request.",
            "trireme_tools.invoke.push",
            ("push cats --to https://box.example --api-key key.txt", "push cats --canary 10 --auto"),
        ),
        "demo": Command(
            "Set up everything and serve the demo's models.",
            "trireme_tools.prepare.demo_command",
            ("demo", "demo --examples"),
        ),
        "prepare": Command(
            "Fetch the demo's weights, convert them and build the model repository for the CPU.",
            "trireme_tools.prepare.prepare_command",
            ("prepare resnet", "prepare --triton"),
        ),
        "logs": Command(
            "Show and filter the log of a SageMaker endpoint's containers, or with --local of a box here.",
            "trireme_tools.logs:add_logs_arguments trireme_tools.logs:show_logs",
            ("logs --local --status 5xx", "logs pets -f"),
        ),
    },
    "Deploy": {
        "deploy": Command(
            "Create or update a SageMaker endpoint, and compare its answers with the golden ones.",
            "trireme_tools.deploy.deploy_arguments:add_deploy_arguments "
            "trireme_tools.deploy.deploy_commands:deploy",
            (
                f"deploy pets --image {IMAGE} --model-data model",
                "deploy pets --rollback",
            ),
        ),
        "status": Command(
            "Show a SageMaker endpoint: its configuration, its models and its state.",
            "trireme_tools.deploy.deploy_arguments:add_status_arguments "
            "trireme_tools.deploy.deploy_commands:show_status",
            ("status pets", "status pets --region eu-west-1"),
        ),
        "delete": Command(
            "Delete a SageMaker endpoint and everything that was created for it.",
            "trireme_tools.deploy.deploy_arguments:add_delete_arguments "
            "trireme_tools.codebuild.delete_command:run",
            ("delete pets", "delete --build --yes"),
        ),
        "template": Command(
            "Print a deployment for CloudFormation, Terraform, Kubernetes, Helm or KServe.",
            "trireme_tools.templates.template_commands:add_template_arguments "
            "trireme_tools.templates.template_commands:template",
            (
                "template pets --format kubernetes --image registry.example/pets:1",
                f"template pets --image {IMAGE} --model-data s3://models/pets.tar.gz",
            ),
        ),
        "iam": Command(
            "Print the smallest IAM policies that a deployment or the gateway needs.",
            "trireme_tools.templates.template_commands:add_iam_arguments "
            "trireme_tools.templates.template_commands:iam",
            (
                "iam pets",
                f"iam pets --image {IMAGE} --model-data model",
            ),
        ),
        "images": Command(
            "List AWS's prebuilt Triton images by Region.",
            "trireme_tools.deploy.deploy_arguments:add_images_arguments "
            "trireme_tools.deploy.images:show_images",
            ("images", "images --region eu-west-1"),
        ),
        "cost": Command(
            "Show the monthly cost of models: each on its own endpoint, and all on one.",
            "trireme_tools.cost.cost_command",
            ("cost", "cost --plan plan.json --live"),
        ),
    },
}
