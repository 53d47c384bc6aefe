# The worker's image. Graphs are mounted at /graphs, or copied there by an image that builds on this one.
ARG PYTHON_VERSION=3.13

FROM python:${PYTHON_VERSION}-slim AS build
# More extras: --build-arg EXTRAS=cli,encryption,uvloop,openai
ARG EXTRAS=cli,encryption,uvloop
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/tenxgraph
WORKDIR /src
COPY . .
RUN /opt/tenxgraph/bin/pip install -c constraints.txt ".[${EXTRAS}]"

FROM python:${PYTHON_VERSION}-slim
RUN groupadd --gid 10001 tenxgraph \
    && useradd --uid 10001 --gid tenxgraph --no-create-home --home-dir /graphs --shell /usr/sbin/nologin tenxgraph
COPY --from=build /opt/tenxgraph /opt/tenxgraph
ENV PATH=/opt/tenxgraph/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TENXGRAPH_HEALTH_PORT=8081
WORKDIR /graphs
USER 10001:10001
EXPOSE 8081
# A worker that is told to end drains first: give it longer than TENXGRAPH_GRACEFUL_SHUTDOWN_TIMEOUT.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ['TENXGRAPH_HEALTH_PORT']}/healthz\", timeout=4)"]
ENTRYPOINT ["tenxgraph-temporal"]
CMD ["--help"]
