# Flags for what is taken to other machines. Include this, after SAN is set.
#
# REPRODUCIBLE goes into CFLAGS: no path of this machine gets into the files, so that
# they have the same bytes whatever folder they are built in.
#
# GLIBC_CFLAGS and GLIBC_LIBS, with GLIBC_START beside the other sources of a program, or
# GLIBC_FUNCTIONS where those are called: it runs with glibc 2.17 and newer (symver.h).
# Until 2.34 threads and dlopen were in libraries of their own, which newer ones still
# have, empty. A sanitizer has functions of its own in front of the C library's.
GLIBC := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
REPRODUCIBLE := -ffile-prefix-map=$(abspath $(GLIBC)/..)=.
ifeq ($(SAN),)
GLIBC_CFLAGS := -include $(GLIBC)/symver.h
GLIBC_LIBS := -Wl,--push-state,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--pop-state
GLIBC_START := $(GLIBC)/start.c
GLIBC_FUNCTIONS := $(GLIBC)/functions.c
endif
