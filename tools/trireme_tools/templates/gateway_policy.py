"""The permissions of the gateway's function, and its network access."""

from __future__ import annotations

from trireme_tools.templates.policies import Document, allow, document, trust_policy

#: A function in a VPC creates and removes its own network interface; AWS allows no resource for these
#: actions.
INTERFACES = [
    f"ec2:{verb}"
    for verb in ("CreateNetworkInterface", "DeleteNetworkInterface", "DescribeNetworkInterfaces")
]


def policies(name: str, bucket: str, inputs: list[str], results: str, models: str, port: int) -> Document:
    """Return role, trust and network of the gateway ``name``. Prefixes are of keys in ``bucket``."""
    arn = f"arn:*:s3:::{bucket}"
    group = f"arn:*:logs:*:*:log-group:/aws/lambda/{name}-*"
    reading = [f"{arn}/{prefix}*" for prefix in (*inputs, models)]
    listing = [f"{prefix}*" for prefix in (*inputs, models)]
    return {
        "trust": trust_policy("lambda.amazonaws.com"),
        "policy": document(
            [
                allow("ReadInputsAndModels", ["s3:GetObject"], reading),
                # Without this, a missing object is a 403 instead of a 404.
                allow("List", ["s3:ListBucket"], arn, StringLike={"s3:prefix": listing}),
                allow("WriteResults", ["s3:PutObject"], f"{arn}/{results}*"),
                allow(
                    "WriteLogs", ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"], group
                ),
                allow("Interfaces", INTERFACES, "*"),
            ]
        ),
        "network": network(port),
    }


def network(port: int) -> Document:
    """Allow the function to reach Triton and S3 only, and Triton to be reached by the function."""
    triton = {"IpProtocol": "tcp", "FromPort": port, "ToPort": port}
    return {
        "gateway": {
            "SecurityGroupEgress": [
                {**triton, "Description": "gRPC to Triton", "DestinationSecurityGroupId": "TRITON-GROUP"},
                {
                    "IpProtocol": "tcp",
                    "FromPort": 443,
                    "ToPort": 443,
                    "Description": "S3, through a gateway endpoint of the VPC",
                    "DestinationPrefixListId": "PREFIX-LIST-OF-S3",
                },
            ],
            "SecurityGroupIngress": [],
        },
        "triton": {
            "SecurityGroupIngress": [
                {**triton, "Description": "the gateway", "SourceSecurityGroupId": "GATEWAY-GROUP"}
            ]
        },
    }
