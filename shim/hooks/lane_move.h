/* The thread that moves the blocks of the lane: lane.h. */
#ifndef RATION_LANE_MOVE_H
#define RATION_LANE_MOVE_H

#include <stdbool.h>

/* lane_start starts the thread, and returns whether it runs. */
bool lane_start(void);

#endif
