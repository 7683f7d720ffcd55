# The server of Megaboard: the page and the command line. It needs no GPU and no torch; the training runs on the nodes.
FROM python:3.11-slim AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
# The id of the user whose SSH key the server reads.
ARG UID=1000
RUN useradd --uid "$UID" --create-home megaboard \
    && install --directory --owner megaboard --mode 700 /data
COPY requirements/page.txt /tmp/page.txt
RUN pip install --no-cache-dir --require-hashes --requirement /tmp/page.txt
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-cache-dir --no-deps /tmp/wheels/*.whl
USER megaboard
ENV MEGABOARD_HOME=/data HF_HOME=/data/huggingface
VOLUME /data
# The server listens on 127.0.0.1, so the container uses the network of its machine (compose.yaml).
ENTRYPOINT ["megaboard"]
