"""What wheels-api counts."""

from prometheus_client import CollectorRegistry, Counter


class Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.uploads = Counter("pyoco_wheel_uploads", "Wheels that were registered.", registry=registry)
        self.deletes = Counter("pyoco_wheel_deletes", "Wheels that were deleted.", registry=registry)
        self.downloads = Counter("pyoco_wheel_downloads", "Wheels that somebody began to fetch.", registry=registry)
        self.swept = Counter(
            "pyoco_wheel_orphans_swept", "Unfinished uploads whose bytes were removed later.", registry=registry
        )
