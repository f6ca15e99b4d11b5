# nginx's error log as lines of the log contract, for any sed -E in the C locale: GNU's and BusyBox's. Where it is used,
# @OFFSET@ becomes the time zone and @NOW@ the time for a line that has none.

# One line of printable characters, without the queries of requests and the secrets of keys, fit for JSON. An address
# with a letter, digit, - or _ that is percent-encoded, which it need not be, may hide a key.
s/[^ -~]/./g
s#(/[^ "?]*)\?[^ "]*#\1?...#g
s#[^ "]*%(25)*(2[Dd]|3[0-9]|4[1-9A-Fa-f]|5[0-9AaFf]|6[1-9A-Fa-f]|7[0-9Aa])[^ "]*#(withheld)#g
s#(pyoco_[A-Za-z0-9-]+_)[A-Za-z0-9_-]{32,}#\1(withheld)#g
s/[\\"]/\\&/g
# From here on `t` asks about what follows only.
t shape
:shape

# 2026/11/16 13:40:30 [warn] 30#30: *7 what happened; "nginx: [emerg] …" before there is a log; anything else.
s#^([0-9]{4})/([0-9]{2})/([0-9]{2}) ([0-9:]{8}) \[([a-z]+)\] ([0-9]+\#[0-9]+: )?(.*)$#\5 \1-\2-\3T\4@OFFSET@ \7#
t level
s#^nginx: \[([a-z]+)\] (.*)$#\1 @NOW@ \2#
t level
s#^(.*)$#warn @NOW@ \1#

:level
s#^(emerg|alert|crit) #CRITICAL "status":"failed","meta":{"error_code":"INTERNAL_ERROR","exception_type":"unknown","retryable":false} #
s#^error #ERROR "status":"failed","meta":{"error_code":"INTERNAL_ERROR","exception_type":"unknown","retryable":false} #
s#^warn #WARNING "status":"completed","meta":{} #
s#^(notice|info) #INFO "status":"completed","meta":{} #
s#^debug #DEBUG "status":"completed","meta":{} #
s#^([A-Z]+) ("status":"[a-z]+","meta":\{[^}]*\}) ([^ ]+) (.*)$#{"ts":"\3","service":"pyoco-server:http","level":"\1","logger":"nginx.error","message":"\4","pathname":"","lineno":0,"func":"","event":"foreign_line","component":"gateway","duration_ms":0,"entity_id":"","request_id":"",\2}#
