// The texts of the page in each language, and which language it speaks.

const TEXTS = {
  en: {
    skip: "Skip to content", navigation: "Views", runs: "Runs", workers: "Workers", submit_run: "Submit a run",
    filter_by_status: "Filter by status", all: "All", runs_caption: "The newest runs", status: "Status", flow: "Flow",
    run: "Run", worker: "Worker", duration: "Duration", submitted: "Submitted", state: "State", tags: "Tags",
    busy: "Works on", last_run: "Last run", seen: "Last seen", detail: "Details of a run",
    flow_name: "Flow name", params_json: "Parameters (a JSON object)", tag_optional: "Tag (optional)",
    close: "Close", submit: "Submit", sending: "Sending …",
    key_title: "API key", key_label: "API key", key_use: "Use this key",
    key_kept: "It is kept in this browser tab only and forgotten when you close it.",
    key_required: "This server asks for an API key.", key_invalid: "The server did not accept this API key.",
    key_change: "API key", key_forget: "Forget the key", key_in_use: "This tab uses an API key. Enter another one to change it.",
    scope_missing: "This API key may not do that: it lacks the scope {scope}.",
    scope_missing_next: "Use another key (button “API key” above), or ask an operator for one:",
    live: "Live", paused: "Waiting for the API key", lost: "No connection, trying again",
    unreachable: "The server cannot be reached.", http_failed: "The server answered with status {status}.",
    no_runs: "No runs yet", no_runs_next: "Submit the first one with the button above, or from a terminal:",
    no_match: "No run is {status}", no_match_next: "Choose “All” above to see every run.",
    no_workers: "No workers yet",
    no_workers_next: "Runs wait until a worker takes them. Start one on any machine that reaches NATS:",
    run_not_found: "There is no such run. It may be gone, or belong to somebody else.",
    loading: "Loading …", back: "All runs", run_id: "Run id", tag: "Tag", attempt: "Attempt", started: "Started",
    error: "Error", reason: "Reason", params: "Parameters", tasks: "Tasks",
    no_tasks: "No task has started yet.", result: "Result", cancel: "Cancel", rerun: "Run again", rerun_of: "Runs again",
    failures: "Failures", deadline: "Deadline",
    waiting_queue: "Waiting for a worker with the tag “{tag}” to be free.", waiting_cancel: "It ends without beginning.",
    waiting_schedule: "It may begin at {at}.", waiting_retry: "It failed and is tried again at {at}.",
    waiting_deadline: "Its deadline has passed; it is about to be ended.",
    waiting_no_worker: "Waiting: no worker takes runs with the tag “{tag}”. Start or resume one and it goes on by itself.",
    waiting_flow: "Waiting for a worker with the tag “{tag}” that offers this flow.",
    worker_gone: "The worker fell silent; the run will be taken over.",
    records_truncated: "The records were too large and have been shortened.",
    output: "Output", inputs: "Inputs", traceback: "Traceback",
    cancel_requested: "Cancel requested", params_invalid: "The parameters are not valid JSON: {reason}",
    params_not_object: "The parameters must be a JSON object, such as {\"name\": \"Ada\"}.",
    slots: "{used} of {slots}", nothing: "–", interruptions: "Interruptions",
    wheels: "Wheels", wheel: "Wheel", version: "Version", sha256: "SHA-256", size: "Size", uploaded: "Uploaded",
    delete: "Delete", action: "Action", by: "By", from: "From", when: "When", show_older: "Show older entries",
    wheels_hint: "Workers that sync wheels install the newest of each package.",
    upload_wheel: "Upload a wheel", upload: "Upload", wheel_file: "Wheel file (.whl)",
    tags_optional: "Tags, separated by commas (optional)", upload_progress: "Sent so far", storing: "Storing …",
    upload_hint: "Without tags the wheel is for every worker. Its version must be newer than the registered one.",
    every_worker: "every worker", wheel_history: "History", no_wheels: "No wheels yet",
    no_wheels_next: "Upload the first one with the button above, or from a terminal:",
    delete_wheel: "Delete the wheel", delete_question: "Delete {name}?", keep_wheel: "Keep it",
    delete_hint: "Workers drop it at their next sync, and use an older one of its package if there is one.",
    UPLOAD: "Upload", DELETE: "Delete",
    PENDING: "Pending", RUNNING: "Running", COMPLETED: "Completed", SUCCEEDED: "Succeeded", FAILED: "Failed",
    CANCELLING: "Cancelling", CANCELLED: "Cancelled", IDLE: "Idle", STOPPED_GRACEFUL: "Stopped",
    DISCONNECTED: "Disconnected", DRAINING: "Draining", HIDDEN: "Hidden", SYNC_FAILED: "Not up to date",
    wheels: "Wheels", wheels_installed: "{count} installed", actions: "Actions", drain: "Drain", resume: "Resume",
    hide: "Hide", unhide: "Show", show_all_workers: "Show stopped and hidden workers, too",
  },
  ja: {
    skip: "本文へ移動", navigation: "表示", runs: "実行一覧", workers: "ワーカー", submit_run: "実行を投入",
    filter_by_status: "状態で絞り込む", all: "すべて", runs_caption: "新しい順の実行一覧", status: "状態", flow: "フロー",
    run: "実行", worker: "ワーカー", duration: "所要時間", submitted: "投入", state: "状態", tags: "タグ",
    busy: "実行中", last_run: "前回の実行", seen: "最終確認", detail: "実行の詳細",
    flow_name: "フロー名", params_json: "パラメータ（JSONオブジェクト）", tag_optional: "タグ（任意）",
    close: "閉じる", submit: "投入", sending: "送信中…",
    key_title: "APIキー", key_label: "APIキー", key_use: "このキーを使う",
    key_kept: "このタブの中だけに保存され、タブを閉じると消えます。",
    key_required: "このサーバーにはAPIキーが必要です。", key_invalid: "このAPIキーは受け付けられませんでした。",
    key_change: "APIキー", key_forget: "キーを消す", key_in_use: "このタブはAPIキーを使っています。別のキーを入力すると切り替わります。",
    scope_missing: "このAPIキーではできません。スコープ {scope} がありません。",
    scope_missing_next: "別のキーを使うか（上の「APIキー」ボタン）、管理者に発行を依頼してください:",
    live: "自動更新中", paused: "APIキーの入力待ち", lost: "接続できません。再試行しています",
    unreachable: "サーバーに接続できません。", http_failed: "サーバーがステータス{status}を返しました。",
    no_runs: "まだ実行がありません", no_runs_next: "上のボタンから、または端末から最初の実行を投入してください:",
    no_match: "「{status}」の実行はありません", no_match_next: "上の「すべて」を選ぶと全件を表示します。",
    no_workers: "まだワーカーがいません",
    no_workers_next: "ワーカーが引き受けるまで実行は待機します。NATSに届くマシンで起動してください:",
    run_not_found: "この実行は見つかりません。すでに消えたか、別の利用者のものです。",
    loading: "読み込み中…", back: "一覧へ戻る", run_id: "実行ID", tag: "タグ", attempt: "試行回数", started: "開始",
    error: "エラー", reason: "理由", params: "パラメータ", tasks: "タスク",
    no_tasks: "開始したタスクはまだありません。", result: "結果", cancel: "取消", rerun: "再実行", rerun_of: "再実行元",
    failures: "失敗回数", deadline: "期限",
    waiting_queue: "タグ「{tag}」のワーカーが空くのを待っています。", waiting_cancel: "開始せずに終了します。",
    waiting_schedule: "{at} に開始できます。", waiting_retry: "失敗したため {at} に再試行します。",
    waiting_deadline: "期限を過ぎたため、まもなく終了します。",
    waiting_no_worker: "タグ「{tag}」を受け付けるワーカーがいません。起動または受付再開すると自動で始まります。",
    waiting_flow: "このフローを実行できるタグ「{tag}」のワーカーを待っています。",
    worker_gone: "ワーカーからの応答が途絶えました。別のワーカーが引き継ぎます。",
    records_truncated: "記録が大きすぎるため、一部を省略しました。",
    output: "出力", inputs: "入力", traceback: "トレースバック",
    cancel_requested: "取消要求", params_invalid: "パラメータが正しいJSONではありません: {reason}",
    params_not_object: "パラメータは {\"name\": \"Ada\"} のようなJSONオブジェクトにしてください。",
    slots: "{slots}枠中{used}", nothing: "–", interruptions: "中断回数",
    wheels: "wheel", wheel: "wheel", version: "バージョン", sha256: "SHA-256", size: "サイズ", uploaded: "登録",
    delete: "削除", action: "操作", by: "操作者", from: "接続元", when: "日時", show_older: "以前の履歴を表示",
    wheels_hint: "wheel同期が有効なワーカーは、パッケージごとに最新のものを取り込みます。",
    upload_wheel: "wheelを登録", upload: "登録", wheel_file: "wheelファイル（.whl）",
    tags_optional: "タグ（カンマ区切り、任意）", upload_progress: "送信の進み具合", storing: "保存中…",
    upload_hint: "タグがなければ全ワーカーが対象です。登録済みより新しいバージョンだけを登録できます。",
    every_worker: "全ワーカー", wheel_history: "履歴", no_wheels: "まだwheelがありません",
    no_wheels_next: "上のボタンから、または端末から最初のwheelを登録してください:",
    delete_wheel: "wheelを削除", delete_question: "{name} を削除しますか。", keep_wheel: "残す",
    delete_hint: "ワーカーは次の同期で取り除き、同じパッケージの古いwheelがあればそれを使います。",
    UPLOAD: "登録", DELETE: "削除",
    PENDING: "待機中", RUNNING: "実行中", COMPLETED: "完了", SUCCEEDED: "成功", FAILED: "失敗",
    CANCELLING: "取消中", CANCELLED: "取消済み", IDLE: "待機中", STOPPED_GRACEFUL: "停止済み",
    DISCONNECTED: "切断", DRAINING: "受付停止中", HIDDEN: "非表示", SYNC_FAILED: "未反映",
    wheels: "wheel", wheels_installed: "{count}件導入済み", actions: "操作", drain: "受付停止", resume: "受付再開",
    hide: "隠す", unhide: "表示する", show_all_workers: "停止済みと非表示のワーカーも表示する",
  },
};

function chosenLanguage() {
  const configured = window.PYOCO?.lang;
  if (configured in TEXTS) return configured;
  return navigator.language.toLowerCase().startsWith("ja") ? "ja" : "en";
}

export const lang = chosenLanguage();

export function t(key, values = {}) {
  const text = TEXTS[lang][key] ?? key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

/** Fill in the texts of the static page. */
export function translatePage() {
  document.documentElement.lang = lang;
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = t(node.dataset.text);
  for (const node of document.querySelectorAll("[data-label]")) node.setAttribute("aria-label", t(node.dataset.label));
}
