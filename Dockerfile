# Every part that is written in Python: PART is its folder, the target is its image.
#   docker build --target runs-api --build-arg PART=services/runs-api .
FROM python:3.12-slim AS tools
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
COPY requirements-build.lock /locks/
RUN python -m venv /build && /build/bin/pip install --require-hashes -r /locks/requirements-build.lock

# The base of all parts is built once.
FROM tools AS shared
COPY contracts /src/contracts
COPY kit /src/kit
RUN /build/bin/pip wheel --no-deps --no-build-isolation --no-index -w /wheels /src/contracts /src/kit

FROM tools AS build
ARG PART
COPY ${PART}/requirements.lock /locks/
RUN python -m venv --without-pip /app \
 && /build/bin/pip --python /app/bin/python install --require-hashes -r /locks/requirements.lock
COPY --from=shared /wheels /wheels
COPY ${PART} /src/part
RUN /build/bin/pip wheel --no-deps --no-build-isolation --no-index -w /wheels /src/part \
 && /build/bin/pip --python /app/bin/python install --no-deps --no-index /wheels/*.whl

FROM python:3.12-slim AS part
# The base image's installer has no use here but for an intruder; synced wheels are installed with one in /app.
RUN python -m pip uninstall --yes --quiet --root-user-action=ignore pip \
 && rm -rf /usr/local/bin/pip* /usr/local/bin/idle* /usr/local/lib/python3.12/ensurepip
# Flows are mounted in /flows, or arrive by wheel; only the worker writes, into /data.
RUN mkdir -p /flows /data && chown 10001:10001 /data
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    PYOCO_LOAD_DOTENV=0 PYOCO_LOG_FORMAT=json
# An unprivileged user that owns nothing in the image, so a read-only file system is enough.
USER 10001:10001
STOPSIGNAL SIGTERM
# These come late, so that another revision of the same content costs nothing.
ARG VERSION=0.0.0 REVISION=unknown
ENV PYOCO_REVISION=${REVISION}
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM part AS service
ENV PYOCO_HOST=0.0.0.0 PYOCO_PORT=8000
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --start-interval=1s --retries=3 CMD ["python", "-m", "fleet_kit.telemetry.probe"]

FROM service AS runs-api
LABEL org.opencontainers.image.title="pyoco-fleet runs-api"
CMD ["pyoco-fleet-runs-api"]

FROM service AS workers-api
LABEL org.opencontainers.image.title="pyoco-fleet workers-api"
CMD ["pyoco-fleet-workers-api"]

FROM service AS wheels-api
LABEL org.opencontainers.image.title="pyoco-fleet wheels-api"
CMD ["pyoco-fleet-wheels-api"]

FROM service AS auth
LABEL org.opencontainers.image.title="pyoco-fleet auth"
CMD ["pyoco-fleet-auth"]

FROM part AS worker
ENV PYOCO_MONITOR_HOST=0.0.0.0 PYOCO_MONITOR_PORT=9100 \
    PYOCO_FLOWS_DIR=/flows PYOCO_WORKER_DIR=/data/runs PYOCO_WHEEL_SYNC_DIR=/data/wheels \
    PYOCO_FLOW_LIBRARIES_DIR=/data/libraries
WORKDIR /data
EXPOSE 9100
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --start-interval=1s --retries=3 CMD ["python", "-m", "fleet_kit.telemetry.probe", "9100"]
LABEL org.opencontainers.image.title="pyoco-fleet worker"
CMD ["pyoco-worker"]
