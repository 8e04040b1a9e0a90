#!/bin/sh
# Makes an authority, certificates and tokens for docker-compose.tls.yml and deploy/helm: make.sh DIRECTORY [NAME [NAMESPACE]]
#
# In Kubernetes NAME is what the release's objects begin with, and NAMESPACE where they are; both are draftwire by default.
# For each component DIRECTORY has a directory COMPONENT-tls with ca.crt, tls.crt and tls.key, and COMPONENT-tokens with the token
# that it presents and those that it accepts: mounted by Compose, secrets in Kubernetes. Your own are in `operator`.
# A second run makes new certificates (90 days) and keeps the authority and the tokens. Needs openssl 3.
set -eu
name=${2:-draftwire}
namespace=${3:-draftwire}
mkdir -p "$1"
cd "$1"
# Closed to other users of this machine. Inside, all may read: programs in containers run as different users.
chmod 700 .
umask 022

key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ ! -e ca.key ]; then
  # shellcheck disable=SC2086  # key is several words
  openssl req -x509 $key -days 3650 -subj "/CN=draftwire authority" -keyout ca.key -out ca.crt \
    -addext "keyUsage=critical,keyCertSign,cRLSign" 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
fi

# certificate NAME SUBJECT_ALTERNATIVE_NAMES: the names by which it is called, and localhost for its own health check
certificate() {
  mkdir -p "$1-tls"
  printf "subjectAltName=%s,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n" "$2" > "$work/extensions"
  # shellcheck disable=SC2086
  {
    openssl req -new $key -subj "/CN=$1" -keyout "$work/tls.key" -out "$work/request" &&
    openssl x509 -req -in "$work/request" -CA ca.crt -CAkey ca.key -CAcreateserial -days 90 \
      -extfile "$work/extensions" -out "$work/tls.crt"
  } 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
  chmod 644 "$work/tls.key"
  mv "$work/tls.crt" "$work/tls.key" "$1-tls/"
  cp ca.crt "$1-tls/"
}
certificate verifier "DNS:verifier,DNS:$name-verifier.$namespace.svc,DNS:*.$name-verifier.$namespace.svc"
certificate drafter "DNS:drafter-1,DNS:drafter-2,DNS:$name-drafter.$namespace.svc"
certificate gateway "DNS:gateway,DNS:$name-gateway.$namespace.svc"

mkdir -p verifier-tokens drafter-tokens gateway-tokens operator
cp ca.crt operator/

# token CALLER ROLE DIRECTORY: makes the caller's token if there is none, and prints its table
token() {
  [ -e "$3/token" ] || openssl rand -hex 32 > "$3/token"
  digest=$(tr -d "\n" < "$3/token" | openssl dgst -sha256 -r | cut -d " " -f 1)
  printf '[%s]\nsha256 = "%s"\nroles = ["%s"]\n\n' "$1" "$digest" "$2"
}
{
  token services draft verifier-tokens
  token gateway generate gateway-tokens
  token operator admin operator
} > "$work/accepted.toml"
cp verifier-tokens/token drafter-tokens/
for accepting in verifier drafter; do
  cp "$work/accepted.toml" "$accepting-tokens/"
done
