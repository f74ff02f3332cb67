"""A stream log that notices within two seconds that a process has died."""

from app_toolkit.streaming import StreamLimits, StreamLogDeployment

log = StreamLogDeployment.bind(StreamLimits(lease_s=2.0))
