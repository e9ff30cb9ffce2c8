#include "hooks/departure.h"

#include "charge.h"
#include "overhead.h"
#include "region/words.h"

void departure_add(struct departure *p, const struct alloc_record *r)
{
	struct departure_sums *s = &p->device[r->device];
	uint64_t bytes = units_for(r->bytes) * RATION_UNIT;
	s->bytes += bytes;
	s->absent += r->flags & RECORD_MANAGED ? bytes : 0;
	s->deferred += r->flags & RECORD_DEFERRED ? bytes : 0;
	s->unconfirmed += r->flags & RECORD_UNCONFIRMED ? bytes : 0;
	s->exported += r->flags & RECORD_EXPORTED ? bytes : 0;
	s->ipc += (r->flags & (RECORD_EXPORTED | RECORD_IPC)) == RECORD_IPC ? bytes : 0;
}

void departure_begin(struct departure *p)
{
	for (unsigned i = 0; i < RATION_DEVICES; i++) {
		struct departure_sums *s = &p->device[i];
		if (!s->bytes)
			continue;
		if (s->unconfirmed)
			s->corrected = overhead_drop_unconfirmed(device_at(i), p->kind, s->unconfirmed);
		charge_leaving(i, s->bytes - s->corrected);
	}
}

void departure_end(const struct departure *p, bool gone)
{
	for (unsigned i = 0; i < RATION_DEVICES; i++) {
		const struct departure_sums *s = &p->device[i];
		if (!s->bytes)
			continue;
		if (!gone) {
			charge_arrived(i, s->bytes - s->corrected);
			if (s->unconfirmed)
				overhead_add_unconfirmed(device_at(i), p->kind, s->unconfirmed, s->corrected);
			continue;
		}
		charge_mark_managed(i, s->absent, false);
		if (s->deferred)
			overhead_drop_deferred(device_at(i), s->deferred);
		if (s->exported)
			overhead_lend(device_at(i), s->exported, false);
		if (s->ipc)
			overhead_lend(device_at(i), s->ipc, true);
		charge_return(i, p->kind, s->bytes - s->corrected - s->exported - s->ipc);
	}
}
