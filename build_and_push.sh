#!/usr/bin/env bash
# Build the image and push it to Amazon ECR. docs/deploy/push.md describes the steps.
set -euo pipefail
readonly CALLED_FROM=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")"

# SageMaker accepts only Docker's manifests, neither OCI's nor an index. By default docker adds attestations, which
# need an index, and podman builds in OCI's format.
export BUILDX_NO_DEFAULT_ATTESTATIONS=1 BUILDAH_FORMAT=docker
export AWS_PAGER=

name='' models='' engine=${DOCKER:-} extra_tag='' platform='' target=gpu as_user='' dry_run='' account=''
codebuild='' sure=''
regions=() build_command=()

usage() {
    cat <<END
usage: ./build_and_push.sh [NAME] [-t TAG] [--region R]... [--target gpu|cpu] [--platform P] [--models DIR] [--as-user]
                           [--dry-run] [--codebuild [--yes]]

Builds the image, makes the ECR repository NAME (trireme) where it is missing, and pushes VERSION-COMMIT to it.

  NAME            the repository's name, such as triton-multi-models or team/triton
  -t TAG          push this tag as well
  --region R      to this Region; may be given several times (default: the aws command line's own)
  --target T      gpu (NVIDIA's Triton, the default) or cpu; the tag of the latter ends in -cpu
  --platform P,P  build for these platforms, such as linux/arm64,linux/amd64: an image each, as SageMaker refuses an
                  index; the tags end in the architecture. Default: this machine's; the tag says it if it is arm64
  --models DIR    bake this model repository into the image, for an endpoint without model data; the tag ends in
                  -models- and a hash of its files
  --as-user       build an image that starts as user 1000; the tag ends in -user. Default: it starts as root, as AWS
                  asks for, and goes on as user 1000 where that user can read the models
  --dry-run       print the commands, run none
  --codebuild     build in your AWS account with CodeBuild: no engine is needed here. It says first what that costs and
                  which rights the build gets, and asks; with --yes it does not ask

DOCKER=podman takes Podman though Docker is here, too. REGISTRY=HOST:PORT pushes to that registry, not to ECR's.
END
}

main() {
    local revision platforms each common_tag
    read_options "$@"
    check_options
    [[ -n $codebuild ]] || find_engine
    revision=$(revision)
    common_tag=$extra_tag
    IFS=, read -ra platforms <<<"$platform"
    for each in "${platforms[@]:-}"; do
        platform=$each
        # A tag names one image.
        ((${#platforms[@]} < 2)) || extra_tag=${common_tag:+$common_tag-${platform##*/}}
        make "$revision"
    done
}

# Build and push the image of the revision $1 for $platform.
make() {
    local revision=$1 tags image region
    tags=("$(own_tag "$revision")")
    [[ -z $extra_tag ]] || tags+=("$extra_tag")
    image=$name:${tags[0]}
    if [[ -n $codebuild ]]; then
        build_in_account "$revision" "${tags[0]}"
        return
    fi
    prepare_build "$image" "$revision"
    if [[ -n $dry_run ]]; then
        print_commands "$image" "${tags[@]}"
        return
    fi
    [[ $revision != *-dirty ]] || say "there are changes that are not committed: the tag ends in -dirty"
    check_tools
    check_engine
    find_account
    build
    for region in "${regions[@]}"; do push_to "$region" "$image" "${tags[@]}"; done
}

say() { printf '%s\n' "$*" >&2; }
die() { say "build_and_push.sh: $*"; exit 1; }
wrong_usage() { say "build_and_push.sh: $*"; usage >&2; exit 2; }

read_options() {
    while (($#)); do
        case $1 in
            -h | --help) usage; exit ;;
            --dry-run) dry_run=yes; shift; continue ;;
            --as-user) as_user=yes; shift; continue ;;
            --codebuild) codebuild=yes; shift; continue ;;
            --yes) sure=yes; shift; continue ;;
            -t | --region | --target | --platform | --models) [[ ${2:--} != -* ]] || wrong_usage "$1 needs a value" ;;
            -*) wrong_usage "there is no option '$1'" ;;
            *) [[ -z $name ]] || wrong_usage "there is one NAME, and '$name' is it: what is '$1'?"
                name=$1; shift; continue ;;
        esac
        case $1 in
            -t) extra_tag=$2 ;;
            --region) regions+=("$2") ;;
            --target) target=$2 ;;
            --platform) platform=$2 ;;
            --models) models=$2; [[ $models == /* ]] || models=$CALLED_FROM/$models ;;
        esac
        shift 2
    done
    name=${name:-trireme}
    [[ -z $sure || -n $codebuild ]] || wrong_usage "--yes needs --codebuild: nothing else asks"
}

check_options() {
    [[ $name =~ ^[a-z0-9]+([._/-][a-z0-9]+)*$ && ${#name} -ge 2 && ${#name} -le 256 ]] ||
        die "'$name' cannot be a repository's name: ECR takes lower-case letters and digits, with single '.', '_', '-'" \
            "and '/' between them"
    [[ -z $models || -n $(ls "$models" 2>/dev/null) ]] ||
        die "--models $models: there is no model repository; it is a folder with a folder for each model"
    [[ -z $extra_tag || $extra_tag =~ ^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$ ]] ||
        die "'$extra_tag' cannot be a tag: letters, digits, '_', '.' and '-' can, 128 of them at most"
    [[ $target == gpu || $target == cpu ]] || die "there is no target '$target': use gpu or cpu"
    [[ -z $platform || $platform =~ ^[a-z0-9]+(/[a-z0-9]+)+(,[a-z0-9]+(/[a-z0-9]+)+)*$ ]] ||
        die "'$platform' is not a platform: use one like linux/amd64"
    # With --codebuild, boto3 finds the Region that is set.
    ((${#regions[@]})) || [[ -n $codebuild ]] || regions=("$(default_region)")
    local region
    for region in ${regions[@]+"${regions[@]}"}; do
        [[ $region =~ ^[a-z]+(-[a-z]+)+-[0-9]+$ ]] || no_such_region "$region"
    done
}

default_region() {
    local region=${AWS_REGION:-${AWS_DEFAULT_REGION:-}}
    [[ -n $region ]] || region=$(aws configure get region 2>/dev/null) ||
        die "no Region is set: name one with --region eu-west-1, or run: aws configure set region eu-west-1"
    printf '%s' "$region"
}

no_such_region() {
    die "there is no Region '$1' that these credentials may use: check the spelling (one looks like eu-west-1," \
        "https://docs.aws.amazon.com/general/latest/gr/rande.html lists them), that it is enabled for the account," \
        "and that this machine reaches it"
}

# --- The image's name --------------------------------------------------------------------------------------

version() { sed -n 's/^__version__ = "\(.*\)"$/\1/p' sm/__init__.py; }

# In CodeBuild there is no git: the command that started the build has said what the tag is made of.
revision() {
    [[ -z ${BUILD_REVISION:-} ]] || { printf '%s' "$BUILD_REVISION"; return; }
    local commit suffix=''
    commit=$(git rev-parse --short=12 HEAD 2>/dev/null) ||
        die "this folder is not a git checkout with a commit, and the tag names the commit: run this in a clone"
    [[ -z $(git status --porcelain) ]] || suffix=-dirty
    printf '%s' "$commit$suffix"
}

# The repository's tags are immutable, so the tag contains everything that makes a different image.
own_tag() {
    [[ -z ${BUILD_TAG:-} ]] || { printf '%s' "$BUILD_TAG"; return; }
    local tag
    tag=$(version)-$1
    [[ $target == gpu ]] || tag+=-$target
    if [[ -n $platform ]]; then tag+=-${platform##*/}
    elif [[ -z $codebuild && $HOSTTYPE =~ ^(aarch64|arm64)$ ]]; then tag+=-arm64; fi
    [[ -z $as_user ]] || tag+=-user
    [[ -z $models ]] || tag+=-models-$(hash_of "$models")
    printf '%s' "$tag"
}

# A hash of 12 digits over the names and contents of the folder's files.
hash_of() {
    local sha=(sha256sum)
    command -v sha256sum >/dev/null || sha=(shasum -a 256)  # on a Mac
    (cd "$1" && find -L . -type f -print0 | LC_ALL=C sort -z | xargs -0 "${sha[@]}" | "${sha[@]}" | cut -c1-12)
}

# The address of the clone's origin, without the password that it may contain.
source_address() {
    [[ -z ${BUILD_SOURCE:-} ]] || { printf '%s' "$BUILD_SOURCE"; return; }
    { git remote get-url origin 2>/dev/null || echo unknown; } | sed 's#//[^/@]*@#//#'
}

registry_of() {
    local domain=amazonaws.com  # also for aws-us-gov
    [[ $1 != cn-* ]] || domain=amazonaws.com.cn
    printf '%s' "${REGISTRY:-$account.dkr.ecr.$1.$domain}"
}

# --- Engine and AWS, checked before the build, which takes minutes ------------------------------------------

find_engine() {
    [[ -z $engine ]] || return 0
    engine=docker
    command -v docker >/dev/null || ! command -v podman >/dev/null || engine=podman
}

check_engine() {
    command -v "$engine" >/dev/null ||
        die "no '$engine' here: install Docker (https://docs.docker.com/engine/install), or Podman (apt-get install podman)"
    "$engine" info >/dev/null 2>&1 ||
        die "'$engine' is here, but no engine answers it: start it (sudo systemctl start docker), see '$engine info'," \
            "or use Podman with DOCKER=podman"
}

check_tools() {
    command -v aws >/dev/null ||
        die "no 'aws' here: install the AWS command line (https://aws.amazon.com/cli, or pip install awscli)"
    command -v curl >/dev/null || die "no 'curl' here: install it (apt-get install curl)"
}

# Run the aws command line; if it fails, say what to do next.
ask_aws() {
    local region=$1 errors answer said
    shift
    errors=$(mktemp)
    answer=$(aws --region "$region" --output text "$@" 2>"$errors") || answer=''
    said=$(<"$errors")
    rm -f "$errors"
    [[ -n $answer ]] || explain "$region" "$1 $2" "$said"
    printf '%s' "$answer"
}

explain() {
    local said=${3//$'\n'/ }
    case $3 in
        *'Unable to locate credentials'* | *'could not be found'* | *'NoCredentials'*)
            die "no AWS credentials: run 'aws configure' or 'aws sso login', or set AWS_PROFILE" ;;
        *Expired* | *expired*)
            die "the AWS credentials have expired: get new ones ('aws sso login', or your own way), then run this again" ;;
        *'Could not connect'* | *'Invalid endpoint'* | *"doesn't match a supported format"*)
            no_such_region "$1" ;;
        *InvalidClientTokenId* | *UnrecognizedClient* | *AuthFailure* | *SignatureDoesNotMatch*)
            die "AWS does not know these credentials in $1: check AWS_PROFILE or AWS_ACCESS_KEY_ID; a Region of China or" \
                "GovCloud wants an account of its own, and some others must be enabled first" ;;
        *AccessDenied* | *'not authorized'*)
            die "these AWS credentials may not do '$2' in $1: docs/deploy/push.md lists the permissions. AWS says: ${said# }" ;;
        *) die "'aws $2' failed in $1, and nothing was pushed there: mend this, then run it again. AWS says: ${said# }" ;;
    esac
}

find_account() {
    local region
    for region in "${regions[@]}"; do
        account=$(ask_aws "$region" sts get-caller-identity --query Account)
    done
}

# --- Build ---------------------------------------------------------------------------------------------------

# Sets build_command to the command line for the image $1 of the revision $2.
prepare_build() {
    build_command=("$engine" build --tag "$1" --build-arg "VERSION=$(version)" --build-arg "REVISION=$2"
        --build-arg "SOURCE=$(source_address)")
    # Docker Hub limits CodeBuild's shared addresses (429); Amazon's mirror has the same image.
    local hub=${CODEBUILD_BUILD_ID:+public.ecr.aws/docker}
    [[ $target == gpu ]] || build_command+=(--build-arg "BASE_IMAGE=${hub:-docker.io}/library/debian:trixie-slim")
    [[ -n $as_user ]] || build_command+=(--build-arg RUN_AS=0:0)
    [[ -z $platform ]] || build_command+=(--platform "$platform")
    [[ -z $models ]] || build_command+=(--target with-models --build-context "models=$models")
    build_command+=(.)
}

build() {
    "${build_command[@]}" >&2 ||
        die "the build failed, and nothing was pushed: the reason is above. Mend it and run this again; where it is" \
            "'no space left on device', '$engine system prune' makes room"
}

# --- Push ----------------------------------------------------------------------------------------------------

make_repository() {
    local problem
    problem=$(aws --region "$1" ecr describe-repositories --repository-names "$name" 2>&1 >/dev/null) && return
    [[ $problem == *RepositoryNotFound* ]] || explain "$1" "ecr describe-repositories" "$problem"
    say "making the repository $name in $1"
    ask_aws "$1" ecr create-repository --repository-name "$name" --image-tag-mutability IMMUTABLE \
        --image-scanning-configuration scanOnPush=true >/dev/null
}

log_in() {
    "$engine" login --username AWS --password-stdin "$1" <<<"$2" >/dev/null ||
        die "$1 did not let '$engine' log in: the reason is above. Mend it and run this again, which asks for a new password"
}

# Print the headers and the manifest of the tag $3 at the registry $1, with the password $2; nothing if it does not exist.
manifest() {
    local scheme=https answer
    [[ $1 != localhost:* && $1 != 127.0.0.1:* ]] || scheme=http
    answer=$(printf 'user = "AWS:%s"\n' "$2" | curl --silent --show-error --location --include \
        --suppress-connect-headers --config - \
        --header 'Accept: application/vnd.docker.distribution.manifest.v2+json' \
        --header 'Accept: application/vnd.docker.distribution.manifest.list.v2+json' \
        --header 'Accept: application/vnd.oci.image.manifest.v1+json' \
        --header 'Accept: application/vnd.oci.image.index.v1+json' \
        "$scheme://$1/v2/$name/manifests/$3") ||
        die "$1 did not answer: check that this machine reaches it, then run this again"
    [[ $answer != *MANIFEST_UNKNOWN* && $answer != *NAME_UNKNOWN* ]] || return 0
    [[ $answer =~ HTTP/[0-9.]+\ 200 ]] || die "$1 would not say what its tag $3 is: ${answer%%$'\r'*}." \
        "Check that these credentials may do ecr:BatchGetImage, then run this again"
    printf '%s' "$answer"
}

# Push the image $1 as the tag $4 to the registry $2, with the password $3. Print its digest.
push() {
    local image=$1 registry=$2 password=$3 tag=$4 there id
    id=$("$engine" image inspect --format '{{.Id}}' "$image")
    there=$(manifest "$registry" "$password" "$tag")
    # An image's id is the digest of its configuration or, in Docker's newer store, of its manifest. $there has both.
    if [[ -n $there && $there != *"${id#sha256:}"* ]]; then
        die "$registry has another build under the tag $tag already, and tags are never moved: use that one, or" \
            "$([[ $tag == "$extra_tag" ]] && echo 'choose another tag with -t' || echo 'commit what you changed, as the tag names the commit')"
    elif [[ -n $there ]]; then
        say "$registry/$name:$tag is there already, the same image"
    else
        "$engine" tag "$image" "$registry/$name:$tag"
        "$engine" push "$registry/$name:$tag" >&2 ||
            die "the push to $registry failed: the reason is above. Run this again: what has arrived is not sent twice"
        there=$(manifest "$registry" "$password" "$tag")
    fi
    [[ $there != *application/vnd.oci.image* ]] ||
        say "warning: the image has an OCI manifest, which SageMaker refuses; switch off Docker's containerd image store"
    [[ $there =~ [Dd]ocker-[Cc]ontent-[Dd]igest:\ (sha256:[0-9a-f]+) ]] ||
        die "$registry says no digest for $tag, though it is there: 'aws ecr describe-images' tells it"
    printf '%s\n' "$registry/$name:$tag@${BASH_REMATCH[1]}"
}

push_to() {
    local region=$1 image=$2 registry password tag
    shift 2
    registry=$(registry_of "$region")
    make_repository "$region"
    password=$(ask_aws "$region" ecr get-login-password)
    log_in "$registry" "$password"
    for tag; do push "$image" "$registry" "$password" "$tag"; done
}

# --- Build in the account ----------------------------------------------------------------------------------------

# Build the revision $1 with the tag $2 in CodeBuild, which runs this script.
build_in_account() {
    local python=.venv/bin/python region words
    [[ -x $python ]] || python=${PYTHON:-python3}
    "$python" -Pc 'import trireme_tools' 2>/dev/null ||
        die "--codebuild needs the tools, which '$python' does not have: run 'make serve' here, or pip install" \
            "'trireme-serving[tools]' and name that Python with PYTHON=…"
    words=("$name" --tag "$2" --revision "$1" --source "$(source_address)" --target "$target")
    for region in ${regions[@]+"${regions[@]}"}; do words+=(--region "$region"); done
    [[ -z $extra_tag ]] || words+=(--extra-tag "$extra_tag")
    [[ -z $platform ]] || words+=(--platform "$platform")
    [[ -z $models ]] || words+=(--models "$models")
    [[ -z $as_user ]] || words+=(--as-user)
    [[ -z $sure ]] || words+=(--yes)
    [[ -z $dry_run ]] || words+=(--dry-run)
    [[ $1 != *-dirty ]] || say "there are changes that are not committed: the tag ends in -dirty"
    "$python" -Pm trireme_tools.codebuild.build_command "${words[@]}"
}

# --- The dry run: print a script that does the same ------------------------------------------------------------

print_commands() {
    local image=$1 region registry tag
    shift
    # shellcheck disable=SC2016  # the printed script must expand the account, not this one
    account='$account'
    echo "export BUILDX_NO_DEFAULT_ATTESTATIONS=1 BUILDAH_FORMAT=docker"
    echo "account=\$(aws sts get-caller-identity --region ${regions[0]} --query Account --output text)"
    printf '%q ' "${build_command[@]}"
    echo
    for region in "${regions[@]}"; do
        registry=$(registry_of "$region")
        echo "aws ecr describe-repositories --region $region --repository-names $name ||" \
            "aws ecr create-repository --region $region --repository-name $name --image-tag-mutability IMMUTABLE" \
            "--image-scanning-configuration scanOnPush=true"
        echo "aws ecr get-login-password --region $region | $engine login --username AWS --password-stdin $registry"
        for tag; do
            echo "$engine tag $image $registry/$name:$tag"
            echo "$engine push $registry/$name:$tag"
        done
    done
}

main "$@"
