#!/usr/bin/env bash
# From a clone on a machine without Docker to three right answers in your account, and back to nothing.
#
#   make from-a-laptop                    in an account that is only played, on this machine
#   examples/from-a-laptop.sh             in yours: it costs minutes of CodeBuild and of TYPE
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly NAME=${NAME:-pets} REPOSITORY=${REPOSITORY:-$HOME/.cache/trireme/repository/cpu} TYPE=${TYPE:-ml.c5.xlarge}
readonly IMAGE_NAME=${IMAGE_NAME:-$NAME-image} ROLE=$NAME-execution
export AWS_PAGER='' PYTHON=${PYTHON:-$PWD/.venv/bin/python}

[[ ! -e trireme.toml ]] || { echo "trireme.toml is here: this script writes its own, move yours away"; exit 1; } >&2
sm() { "$PYTHON" -m sm.cli "$@"; }
step() { printf '\n== %s\n' "$*"; }

# Print what the account has of all that is made here.
resources() {
    {
        aws s3api list-buckets --query 'Buckets[].Name'
        aws ecr describe-repositories --query 'repositories[].repositoryName'
        aws iam list-roles --query 'Roles[].RoleName'
        aws codebuild list-projects --query projects
        aws logs describe-log-groups --query 'logGroups[].logGroupName'
        aws sagemaker list-endpoints --query 'Endpoints[].EndpointName'
        aws sagemaker list-endpoint-configs --query 'EndpointConfigs[].EndpointConfigName'
        aws sagemaker list-models --query 'Models[].ModelName'
    } | "$PYTHON" -c 'import re, sys; print("\n".join(sorted(re.findall(r"\"(.*?)\"", sys.stdin.read()))))'
}

export AWS_DEFAULT_OUTPUT=json
folder=$(mktemp -d)
trap 'rm -rf "$folder" trireme.toml' EXIT
resources >"$folder/before"
for name in "$NAME" "$IMAGE_NAME" "$ROLE"; do
    ! grep -qxF -- "$name" "$folder/before" ||
        { echo "the account has '$name' already, and this script removes what it names: choose another NAME"; exit 1; } >&2
done
left() {
    rm -rf "$folder" trireme.toml
    echo "not all is removed: see 'sm delete $NAME', 'sm delete $IMAGE_NAME --build', the role $ROLE and the repository" \
        "$IMAGE_NAME in ${region:-its Region}" >&2
}
trap left EXIT
account=$(aws sts get-caller-identity --query Account --output text)
# The variables come before the profile's Region, as for aws itself.
region=${AWS_REGION:-${AWS_DEFAULT_REGION:-$(aws configure get region || true)}}
: "${region:?no Region is set: aws configure set region eu-west-1}"
bucket=sagemaker-$region-$account

step build the image in the account
image=$(./build_and_push.sh "$IMAGE_NAME" --codebuild --target cpu --region "$region" --yes | head -1)
echo "$image"

step the role of the endpoint
sm iam "$NAME" --image "$image" --model-data "$REPOSITORY" >"$folder/policies"
for part in trust policy; do
    "$PYTHON" -c 'import json, sys; print(json.dumps(json.load(sys.stdin)["role"][sys.argv[1]]))' "$part" \
        <"$folder/policies" >"$folder/$part"
done
role=$(aws iam create-role --role-name "$ROLE" --assume-role-policy-document "file://$folder/trust" \
    --query Role.Arn --output text)
aws iam put-role-policy --role-name "$ROLE" --policy-name endpoint --policy-document "file://$folder/policy"
aws iam wait role-exists --role-name "$ROLE"

step deploy, with the quota asked before the upload
sm deploy "$NAME" --image "$image" --model-data "$REPOSITORY" --role "$role" --instance-type "$TYPE" \
    --region "$region" --save

step three answers
sm invoke --model resnet --image clients/resnet/sample/cat.png
sm invoke --model yolov5 --image clients/yolov5/sample/chelsea.jpg
sm invoke --model bert_base --text 'Paris is the [MASK] of France.'

step remove all of it
sm delete --yes
sm delete "$IMAGE_NAME" --build --yes --region "$region"
aws iam delete-role-policy --role-name "$ROLE" --policy-name endpoint
aws iam delete-role --role-name "$ROLE"
aws ecr delete-repository --repository-name "$IMAGE_NAME" --force >"$folder/deleted"
for group in "/aws/sagemaker/Endpoints/$NAME" "/aws/codebuild/trireme-build-$IMAGE_NAME"; do
    aws logs delete-log-group --log-group-name "$group"
done
grep -qx "$bucket" "$folder/before" || aws s3 rb "s3://$bucket"
resources >"$folder/after"
diff "$folder/before" "$folder/after" || { echo "this is left, or gone"; exit 1; } >&2
trap 'rm -rf "$folder" trireme.toml' EXIT
echo "nothing is left"
