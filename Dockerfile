# midwatch with support for PostgreSQL. To add the programs of your agents, build your own image FROM this one.
FROM python:3.12-slim
WORKDIR /usr/src/midwatch
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir '.[postgres]' \
 && useradd --create-home midwatch \
 && install --directory --owner midwatch --mode 700 /var/lib/midwatch
USER midwatch
WORKDIR /var/lib/midwatch
ENV MIDWATCH_HOME=/var/lib/midwatch
VOLUME /var/lib/midwatch
EXPOSE 7171
ENTRYPOINT ["midwatch"]
CMD ["up"]
