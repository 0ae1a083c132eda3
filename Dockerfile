FROM python:3.13-slim

WORKDIR /app
COPY requirements requirements
COPY pyproject.toml setup.py README.md LICENSE ./
COPY cli cli
COPY core core
COPY gateway gateway
COPY migrations migrations
COPY penstock penstock
COPY storage storage
RUN pip install --no-cache-dir --constraint requirements/constraints.txt . && rm -rf /app \
    && useradd --system --uid 10001 --home-dir /var/lib/penstock --create-home penstock

# An ordinary user: the embedded PostgreSQL, where it is used, then runs as the same one.
USER penstock
# Without --database-url the data is kept in ./data.
WORKDIR /var/lib/penstock
VOLUME /var/lib/penstock

# Only what `docker run -p` publishes can be reached.
ENV PENSTOCK_LISTEN=0.0.0.0:9092 \
    PENSTOCK_PULSAR_LISTEN=0.0.0.0:6650 \
    PENSTOCK_HTTP_LISTEN=0.0.0.0:8080
EXPOSE 9092 6650 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=4s --start-period=20s CMD ["penstock", "check"]
ENTRYPOINT ["penstock"]
CMD ["serve"]
