interpose: interpose.c attach.h config.h limit_parse.h place.h \
 region/abi.h region/region.h region/abi.h mutex.h lock_order.h \
 region/words.h interpose.h elf.h environment.h hooks.h cuda.h hooks.def \
 log.h
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
interpose.h:
elf.h:
environment.h:
hooks.h:
cuda.h:
hooks.def:
log.h:
