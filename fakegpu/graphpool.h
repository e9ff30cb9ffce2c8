/* The memory behind graphs. Graphs that run one after the other share what their
 * device's pool has reserved; it stays reserved until it is trimmed. */
#ifndef FAKEGPU_GRAPHPOOL_H
#define FAKEGPU_GRAPHPOOL_H

#include <stdbool.h>
#include <stdint.h>

/* Makes room for one launch of so many bytes beside what is held. */
bool graph_pool_reserve(unsigned device, uint64_t bytes);

/* An allocation outlives its launch, or ends at last. */
void graph_pool_hold(unsigned device, uint64_t bytes);
void graph_pool_let_go(unsigned device, uint64_t bytes);

#endif
