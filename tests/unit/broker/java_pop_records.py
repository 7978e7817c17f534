"""Bodies of the revive log that RocketMQ 5.3.3 wrote: a pop of four messages, an acknowledgement of
the third, and one of several."""

CHECKPOINT = (
    b'{"bm":0,"bn":"broker-a","c":"workers","d":[0,1,2,3],"it":600000,"n":4,"pt":1795889455078,'
    b'"q":0,"reviveTime":1795890055078,"ro":0,"so":0,"t":"T"}'
)
ACK = b'{"ao":2,"bn":"broker-t","c":"workers","pt":1795889455078,"q":0,"so":0,"t":"T"}'
BATCH_ACK = (
    b'{"ao":-1,"aol":[3],"bn":"broker-t","c":"workers","pt":1795889455078,"q":0,"so":0,"t":"T"}'
)
