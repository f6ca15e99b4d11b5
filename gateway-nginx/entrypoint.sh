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

# Its host names: the loopback names and those of the operator, each once.
known=$(printf '%s,localhost,127.0.0.1,[::1]' "${PYOCO_ALLOWED_HOSTS:-}" | tr 'A-Z,' 'a-z\n' | tr -d ' ' | sort -u)
PYOCO_GATEWAY_KNOWN_HOSTS=$(printf '%s\n' "$known" | sed '/./!d; s/$/ 1;/')
export PYOCO_GATEWAY_KNOWN_HOSTS

# nginx makes the folders in it, but not itself.
mkdir -p /tmp/bodies
# nginx cannot write its error log as JSON. The access log does not go this way: it goes to stdout as it is.
errors=/tmp/errors
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

# The last lines would end with the container, before they are read.
give_up() {
  exec 2>/dev/null
  wait "$follower"
  exit 1
}

# Where the gateway is published is known to compose.yaml only, which passes it on.
case "${PYOCO_PUBLISH:-127.0.0.1}" in
  127.* | localhost:* | "[::1]"*) ;;
  *)
    if [ -z "${PYOCO_HTTP_AUTH_MODE:-}" ]; then
      echo "nginx: [emerg] other machines can reach a gateway that is published on $PYOCO_PUBLISH, and none of them" \
        "would need a key; set PYOCO_HTTP_AUTH_MODE to api_key, or to none to let in everybody who reaches it" >&2
      give_up
    fi
    ;;
esac

unknown=$(printf '%s\n' "$known" | grep -vxE '((\*\.)?[a-z0-9]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:]+\])?' | head -n 1)
if [ -n "$unknown" ]; then
  printf 'nginx: [emerg] PYOCO_ALLOWED_HOSTS names %s; name hosts without scheme and port\n' "$unknown" >&2
  give_up
fi

# The lines of the image about its own steps are no JSON, and nobody needs them.
export NGINX_ENTRYPOINT_QUIET_LOGS=1
# Fills the templates. Who came with a key is remembered where the image has njs, new enough.
njs=/usr/lib/nginx/modules/ngx_http_js_module.so
printf 'load_module %s;\n' "$njs" >/etc/nginx/conf.d/njs.load
cp /etc/nginx/verdicts/with-njs.conf /etc/nginx/conf.d/verdicts.conf
if [ ! -e "$njs" ] || ! /docker-entrypoint.sh nginx -t -q 2>/dev/null; then
  rm /etc/nginx/conf.d/njs.load
  cp /etc/nginx/verdicts/without-njs.conf /etc/nginx/conf.d/verdicts.conf
  /docker-entrypoint.sh nginx -t -q || give_up
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
