# target/release/sluice, and nothing else that runs. Build it first: make build.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY target/release/sluice /sluice
ENTRYPOINT ["/sluice"]
