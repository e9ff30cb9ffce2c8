gate: gate.c gate.h attach.h config.h limit_parse.h place.h region/abi.h \
 region/region.h region/abi.h mutex.h lock_order.h region/words.h log.h \
 region/atomics.h
gate.h:
attach.h:
config.h:
limit_parse.h:
place.h:
region/abi.h:
region/region.h:
region/abi.h:
mutex.h:
lock_order.h:
region/words.h:
log.h:
region/atomics.h:
