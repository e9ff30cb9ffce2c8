#include "driver.h"

#include "knobs.h"

enum driver_state driver_state = DRIVER_COLD;

/* The real driver cuts small allocations from 2 MiB blocks and rounds those above
 * 1 MiB up to whole blocks. By default every allocation is its own, rounded to
 * 512 bytes; FAKEGPU_BLOCK=2m rounds the large ones as the driver does. */
uint64_t physical_size(uint64_t bytes)
{
	uint64_t block = knobs()->block;
	return round_up(bytes, bytes > block / 2 ? block : LEDGER_UNIT);
}
