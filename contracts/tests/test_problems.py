"""The catalogue agrees with the spec's tables of ERR and MSG ids."""

import pytest

from fleet_contracts.problems import Problem

# MSG-PYOCO: number, text, HTTP status of its "output" column (None: never answered over HTTP).
MESSAGES = [
    (1, "稼働確認に失敗しました", None),
    (2, "リクエストが不正です", 422),
    (3, "NATSが利用できません", 503),
    (4, "孤児runが残っている可能性があります（best-effort cleanup失敗）", None),
    (5, "runが見つかりません", 404),
    (6, "flowが見つかりません", None),
    (7, "実行に失敗しました", None),
    (8, "terminal状態の記録に失敗しました", None),
    (9, "in_progress ACK の送信に失敗しました", None),
    (10, "スナップショットが大きすぎます", None),
    (11, "DLQへのpublishに失敗しました（best-effort）", None),
    (12, "不正なジョブを受信しました", None),
    (13, "ログ出力に失敗しました（best-effort）", None),
    (14, "API key が必要です", 401),
    (15, "API key が無効です", 403),
    (16, "ワークフローファイルが大きすぎます", 413),
    (17, "一覧クエリが不正です", 422),
    (18, "CLI引数が不正です（入力形式を確認してください）", None),
    (19, "workersリクエストが不正です", 422),
    (20, "workerが見つかりません", 404),
    (21, "cancel要求がタイムアウトしました（best-effort）", None),
    (22, "wheelバージョンが不正です（同一/過去バージョンは不可）", 409),
    (23, "wheelが見つかりません", 404),
    (24, "wheel同期に失敗しました（best-effort）", None),
]


def test_every_problem_of_the_spec_is_in_the_catalogue_and_no_other() -> None:
    assert [problem.err_id for problem in Problem] == [f"ERR-PYOCO-{number:04d}" for number, _, _ in MESSAGES]


@pytest.mark.parametrize(("number", "text", "status"), MESSAGES)
def test_a_problem_has_the_ids_the_text_and_the_status_of_the_spec(
    number: int, text: str, status: int | None
) -> None:
    [problem] = [problem for problem in Problem if problem.err_id == f"ERR-PYOCO-{number:04d}"]
    assert problem.msg_id == f"MSG-PYOCO-{number:04d}"
    assert problem.message_ja == text
    assert problem.http_status == status


def test_repeating_a_refused_request_unchanged_is_never_worth_it() -> None:
    refused = [problem for problem in Problem if problem.http_status is not None and problem.http_status < 500]
    assert not any(problem.retryable for problem in refused)
    assert Problem.NATS_UNAVAILABLE.retryable
