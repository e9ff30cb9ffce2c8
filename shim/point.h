/* Places between two steps of a protocol where a test build can be told to die
 * or stop: RATION_FAULT=name[:n[:kill|stop]]. An ordinary build has nothing here. */
#ifndef RATION_POINT_H
#define RATION_POINT_H

#include "abi.h"

#ifdef RATION_FAULTPOINTS
void ration_point(enum ration_point p);
#define POINT(name) ration_point(RATION_POINT_##name)
#else
#define POINT(name) ((void)0)
#endif

#endif
