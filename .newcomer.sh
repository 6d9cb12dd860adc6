#!/bin/bash
# newcomer.sh PACKAGES -- CMD: as root install packages, make a user, clone, run CMD as the user in the clone
pk=(); while [ "$1" != -- ]; do pk+=("$1"); shift; done; shift
t() { date +%s.%N; }
apt-get update -qq 2>&1 | tail -1
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends git make "${pk[@]}" >/tmp/apt.log 2>&1 || tail -3 /tmp/apt.log
useradd -m -s /bin/bash ${U:-ann}
git config --system --add safe.directory '*'
install -d -o ${U:-ann} /home/ann/x
cat > /tmp/run.sh <<EOF
export SSL_CERT_FILE=$SSL_CERT_FILE REQUESTS_CA_BUNDLE=$REQUESTS_CA_BUNDLE CURL_CA_BUNDLE=$CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS=$NODE_EXTRA_CA_CERTS
cd ~; git clone -q /src trireme; cd trireme; $@
EOF
chmod 755 /tmp/run.sh
s=$(t); su ${U:-ann} -c 'bash /tmp/run.sh'; echo "exit $? after $(echo "$(t) $s" | awk '{print $1-$2}') s"
