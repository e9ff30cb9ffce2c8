/* Places between two steps of a protocol where a test can make a test build die
 * or stop: RATION_FAULT=name[:n[:kill|stop]]. An ordinary build has nothing here. */
#ifndef RATION_FAILPOINT_H
#define RATION_FAILPOINT_H

#include "abi.h"

#ifdef RATION_FAULTPOINTS
void ration_failpoint(enum ration_failpoint p);
#define FAILPOINT(name) ration_failpoint(RATION_FAILPOINT_##name)
#else
#define FAILPOINT(name) ((void)0)
#endif

#endif
