hugepages: hugepages.c hugepages.h interpose.h log.h
hugepages.h:
interpose.h:
log.h:
