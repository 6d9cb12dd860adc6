#!/usr/bin/env bash
# The whole life of an endpoint: package, push, deploy, invoke, autoscale, update, roll back, cost, delete.
#
#   make endpoint-life                                            in an account that is only played, on this machine
#   PUSH=./build_and_push.sh ROLE=arn:… examples/endpoint-life.sh     in yours: it costs what some minutes of TYPE cost
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly NAME=${NAME:-pets} REPOSITORY=${REPOSITORY:-$HOME/.cache/trireme/repository/cpu} TYPE=${TYPE:-ml.c5.xlarge}
readonly PUSH=${PUSH:-./build_and_push.sh --dry-run}
export PATH=$PWD/.venv/bin:$PATH AWS_PAGER=

sm() { python -m sm.cli "$@"; }
step() { printf '\n== %s\n' "$*"; }

account=$(aws sts get-caller-identity --query Account --output text)
region=$(aws configure get region || echo "${AWS_REGION:?}")
role=${ROLE:-arn:aws:iam::$account:role/trireme}
image=${IMAGE:-$account.dkr.ecr.$region.amazonaws.com/trireme:latest}
bucket=sagemaker-$region-$account
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

step package
sm package "$REPOSITORY" -o "$folder/model.tar.gz"

step push
$PUSH --target cpu --region "$region" -t latest

step what it may do, and what it will cost
sm iam "$NAME" --image "$image" --model-data "s3://$bucket/$NAME/model.tar.gz"
sm cost

step deploy
made=
aws s3api head-bucket --bucket "$bucket" 2>/dev/null || { aws s3 mb "s3://$bucket"; made=yes; }
aws s3 cp --no-progress "$folder/model.tar.gz" "s3://$bucket/$NAME/model.tar.gz"
deploy=(sm deploy "$NAME" --image "$image" --model-data "s3://$bucket/$NAME/model.tar.gz" --role "$role"
    --instance-type "$TYPE" --autoscale 1:2 --target-invocations 600)
"${deploy[@]}"

step invoke
sm invoke "$NAME" --model resnet --image clients/resnet/sample/cat.png
sm invoke "$NAME" --model yolov5 --image clients/yolov5/sample/chelsea.jpg
sm invoke "$NAME" --model bert_base --text 'Paris is the [MASK] of France.'
sm invoke "$NAME" --model bert_base --text 'Paris is the [MASK] of France.' -n 50 -c 4

step update, and back
"${deploy[@]}" --env SAGEMAKER_CONTAINER_LOG_LEVEL=warning
sm deploy "$NAME" --rollback
sm status "$NAME"
sm logs "$NAME" | tail -3

step delete
sm delete "$NAME" --yes
aws s3 rm "s3://$bucket/$NAME/model.tar.gz"
aws logs delete-log-group --log-group-name "/aws/sagemaker/Endpoints/$NAME"
[[ -z $made ]] || aws s3 rb "s3://$bucket"
{
    for kind in endpoints endpoint-configs models; do
        aws sagemaker "list-$kind" --name-contains "$NAME" --output text
    done
    aws cloudwatch describe-alarms --alarm-name-prefix "$NAME" --query 'MetricAlarms[].AlarmName' --output text
    aws application-autoscaling describe-scalable-targets --service-namespace sagemaker --output text |
        grep "endpoint/$NAME/" || true
} >"$folder/left"
[[ ! -s $folder/left ]] || { echo "something is left:"; cat "$folder/left"; exit 1; } >&2
echo "nothing is left"
