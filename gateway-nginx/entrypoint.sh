#!/bin/sh
# The secret of the gateway from its file, a configuration for its owner's eyes only, then the image's own entry point.
set -eu
umask 077
if [ -n "${PYOCO_GATEWAY_SECRET_FILE:-}" ]; then
  PYOCO_GATEWAY_SECRET=$(cat "$PYOCO_GATEWAY_SECRET_FILE")
  export PYOCO_GATEWAY_SECRET
fi
# nginx knows a request header by another spelling of its name.
PYOCO_GATEWAY_API_KEY_VARIABLE=http_$(printf %s "$PYOCO_HTTP_API_KEY_HEADER" | tr 'A-Z-' 'a-z_')
export PYOCO_GATEWAY_API_KEY_VARIABLE

# nginx makes the folders in it, but not itself.
mkdir -p /tmp/bodies
# nginx cannot write its error log as JSON. The access log does not go this way: it goes to stdout as it is.
errors=${PYOCO_GATEWAY_TEMP_DIR:-/tmp}/errors
rm -f "$errors" && mkfifo "$errors"
offset=$(date +%z | sed 's/..$/:&/')
# The image's sed keeps lines back until it ends: so one for what there is at a time, be it a line or a thousand. A line
# is one write of nginx, and one read takes all that a pipe can hold: none is torn.
follow_errors() {
  while dd bs=128k count=1 2>/dev/null >"$errors.now" && [ -s "$errors.now" ]; do
    now=$(date +%Y-%m-%dT%H:%M:%S)$offset
    LC_ALL=C sed -E "$(sed "s#@OFFSET@#$offset#; s#@NOW@#$now#" /errors.sed)" "$errors.now" || :
  done
}
follow_errors <"$errors" &
follower=$!
exec 2>"$errors"

# What the image says about its own steps is no JSON, and nobody needs it.
export NGINX_ENTRYPOINT_QUIET_LOGS=1
# Fills the templates. What nginx says when it cannot start would end with the container, before it is read.
if ! /docker-entrypoint.sh nginx -t -q; then
  exec 2>/dev/null
  wait "$follower"
  exit 1
fi

# nginx asks for the addresses of its upstreams once; a service that is started anew or scaled gets others.
addresses() {
  for upstream in "$PYOCO_GATEWAY_RUNS_UPSTREAM" "$PYOCO_GATEWAY_WORKERS_UPSTREAM" \
    "$PYOCO_GATEWAY_WHEELS_UPSTREAM" "$PYOCO_GATEWAY_AUTH_UPSTREAM"; do
    { getent ahosts "${upstream%:*}" || getent hosts "${upstream%:*}"; } | cut -d' ' -f1 | sort -u
  done
}
follow_addresses() {
  known=$(addresses)
  while sleep "${PYOCO_GATEWAY_RESOLVE_SEC:-2}"; do
    now=$(addresses)
    # While a service is away its name is unknown, and nginx would refuse a configuration with it.
    if [ "$now" != "$known" ] && nginx -t -q 2>/dev/null; then
      nginx -s reload && known=$now
    fi
  done
}
follow_addresses &

exec "$@"
