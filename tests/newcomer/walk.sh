#!/usr/bin/env bash
# Run the README as a newcomer does: walk.sh CHECKOUT, as root on a fresh Debian or Ubuntu.
#
# It adds a user who may use sudo. That user clones CHECKOUT and runs the README's commands as written: the line for
# apt, make serve, the requests and, beside the running box, make test. It ends with 0 if all of it was right.
set -euo pipefail

if [ "$(id -u)" = 0 ]; then
    echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/90newcomer
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq sudo >/dev/null
    useradd --create-home --shell /bin/bash newcomer
    echo 'newcomer ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/newcomer
    cp "$0" "$(dirname "$0")/../../README.md" /home/newcomer/
    exec su - newcomer -c "bash walk.sh '$(cd "$1" && pwd)'"
fi

fail() {
    echo "$1"
    tail -n 30 serve.log test.log 2>/dev/null || true
    exit 1
}

# The README's code blocks of the language sh that have these words.
blocks() {
    awk -v words="$1" '/^```/ { if (inside && index(text, words)) printf "%s", text
                                inside = $0 == "```sh" && !inside; text = ""; next }
                       inside { text = text $0 "\n" }' README.md
}

# Start the box and wait until it prints its page's address.
start() {
    (cd trireme && exec make serve) >serve.log 2>&1 &
    server=$!
    until grep -q 'The page to try it' serve.log; do
        kill -0 "$server" 2>/dev/null || return 1
        sleep 1
    done
}

echo "$(. /etc/os-release && echo "$PRETTY_NAME"): $(blocks 'apt-get install')"
bash -euc "$(blocks 'apt-get install')" >apt.log 2>&1 || { tail apt.log; exit 1; }
python3 --version
git config --global --add safe.directory '*'
git clone --quiet "$1" trireme

set -m # so that Ctrl-C reaches the box alone
SECONDS=0
if ! start; then
    # It may want packages, with a Python that is too new and no way to fetch another. Its advice must do.
    advice=$(grep -o 'sudo apt-get install [a-z0-9. -]*' serve.log | tail -n 1)
    [ -n "$advice" ] || fail "make serve ended without an advice"
    echo "as make serve says: $advice"
    bash -euc "$advice" >apt.log 2>&1 || { tail apt.log; exit 1; }
    start || fail "make serve ended again"
fi
grep 'runs in .venv' serve.log || true
echo "make serve: $SECONDS s"

requests=$(blocks 'curl -s' | grep -v -e 'modelname=hello')
(cd trireme && bash -euc "$requests") >answers.txt || fail "a request failed"
cat answers.txt
echo
right=$(grep -o '"modelname":"[a-z0-9_]*","result":' answers.txt | wc -l)
[ "$right" = 4 ] || fail "$right right answers, not 4"
grep -q 'Egyptian cat' answers.txt || fail "there is no cat in the picture"

SECONDS=0
(cd trireme && make test) >test.log 2>&1 || fail "make test failed beside the running box, after $SECONDS s"
echo "make test: $SECONDS s, $(tail -n 1 test.log)"
kill -INT -- "-$server"
wait "$server" || true
grep -q 'all stopped\|stopped' serve.log || fail "Ctrl-C did not stop the box"
