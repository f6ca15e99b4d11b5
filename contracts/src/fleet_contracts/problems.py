"""The catalogue of problems: ERR and MSG ids of the spec with their texts and HTTP status."""

from enum import Enum


class Problem(Enum):
    # fmt: off
    GATEWAY_UNREACHABLE = (1, "health check failed", "稼働確認に失敗しました", None, True)
    INVALID_REQUEST = (2, "invalid request", "リクエストが不正です", 422, False)
    NATS_UNAVAILABLE = (3, "NATS is unavailable", "NATSが利用できません", 503, True)
    ORPHAN_RUN = (
        4, "an orphan run may remain", "孤児runが残っている可能性があります（best-effort cleanup失敗）", None, True
    )
    RUN_NOT_FOUND = (5, "run not found", "runが見つかりません", 404, False)
    FLOW_NOT_FOUND = (6, "flow not found", "flowが見つかりません", None, False)
    EXECUTION_FAILED = (7, "execution failed", "実行に失敗しました", None, True)
    TERMINAL_WRITE_FAILED = (
        8, "the terminal state could not be recorded", "terminal状態の記録に失敗しました", None, True
    )
    IN_PROGRESS_FAILED = (
        9, "the in_progress ack could not be sent", "in_progress ACK の送信に失敗しました", None, True
    )
    SNAPSHOT_TOO_LARGE = (10, "the snapshot is too large", "スナップショットが大きすぎます", None, True)
    DEAD_LETTER_FAILED = (
        11, "the dead letter could not be published", "DLQへのpublishに失敗しました（best-effort）", None, True
    )
    INVALID_JOB = (12, "an invalid job was received", "不正なジョブを受信しました", None, False)
    LOGGING_FAILED = (13, "logging failed", "ログ出力に失敗しました（best-effort）", None, True)
    API_KEY_REQUIRED = (14, "an API key is required", "API key が必要です", 401, False)
    API_KEY_INVALID = (15, "the API key is invalid", "API key が無効です", 403, False)
    WORKFLOW_TOO_LARGE = (16, "the workflow file is too large", "ワークフローファイルが大きすぎます", 413, False)
    INVALID_LIST_QUERY = (17, "invalid list query", "一覧クエリが不正です", 422, False)
    INVALID_ARGUMENT = (
        18, "invalid command line argument", "CLI引数が不正です（入力形式を確認してください）", None, False
    )
    INVALID_WORKERS_REQUEST = (19, "invalid workers request", "workersリクエストが不正です", 422, False)
    WORKER_NOT_FOUND = (20, "worker not found", "workerが見つかりません", 404, False)
    CANCEL_TIMED_OUT = (
        21, "the cancel request timed out", "cancel要求がタイムアウトしました（best-effort）", None, True
    )
    WHEEL_VERSION_REFUSED = (
        22, "the wheel's version is not newer than the registered one",
        "wheelバージョンが不正です（同一/過去バージョンは不可）", 409, False,
    )
    WHEEL_NOT_FOUND = (23, "wheel not found", "wheelが見つかりません", 404, False)
    WHEEL_SYNC_FAILED = (24, "wheel sync failed", "wheel同期に失敗しました（best-effort）", None, True)
    # fmt: on

    def __init__(self, number: int, message: str, message_ja: str, http_status: int | None, retryable: bool) -> None:
        self.err_id = f"ERR-PYOCO-{number:04d}"
        self.msg_id = f"MSG-PYOCO-{number:04d}"
        self.message = message
        self.message_ja = message_ja
        # None: never answered over HTTP, only logged or printed.
        self.http_status = http_status
        self.retryable = retryable
