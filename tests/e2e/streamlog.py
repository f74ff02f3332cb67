"""A stream log that notices within five seconds that a process has died."""

from app_toolkit.streaming import StreamLimits, StreamLogDeployment

log = StreamLogDeployment.bind(StreamLimits(lease_s=5.0))
