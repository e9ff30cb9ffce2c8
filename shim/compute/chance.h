/* Chooses launches at random to be measured, and estimates from them how long the other launches
 * take. */
#ifndef RATION_CHANCE_H
#define RATION_CHANCE_H

#include <stdint.h>

/* The estimated time of a launch on a stream: the weighted mean of the chosen launches. The caller
 * holds the mark of the meter that the stream belongs to. */
struct chance {
	double ns;         /* mean time of a launch */
	uint32_t launches; /* how many launches the chosen ones represent, at most CHANCE_LAUNCHES; 0: none was chosen yet */
};

/* chance_learn adds a chosen launch to the mean: its time in ns, and stands, the number of launches
 * that it was chosen from. */
void chance_learn(struct chance *c, double ns, uint32_t stands);

/* chance_draw returns a random number of launches that come before the next chosen one: mean on
 * average, and at most twice that. The number does not depend on earlier ones. */
uint64_t chance_draw(uint64_t mean);

#endif
