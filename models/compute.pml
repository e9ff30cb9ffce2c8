/* A device's time (shim/compute/PROTOCOLS.md): the lease of work, by which a job's share is divided among the
 * processes that have work; with CAP, the word that launches wait for; with PARTS, what of the time is charged already; with BOOT, how
 * the words of an earlier boot are cleared; and with ENDS, how work is charged that is under way when its process ends.
 *
 * Of PROCESSES each has a thread that launches, and the first one another that waits for the device, for a while or until the
 * end; a process may die before any step. Time is not modelled: a lease runs out at any moment, and once more when all is quiet. Then every
 * process that launches has looked, one that waits has come back and waits again, and the slices of all of them are right.
 */

#ifndef PROCESSES
#define PROCESSES 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif

bool alive[PROCESSES] = true;

/* A step of process `me`, unless it has died. */
#define STEP(x) if :: atomic { alive[me] -> x } :: !alive[me] -> goto end fi

#ifdef PARTS

/* One word of the ring of time parts, in which processes claim what they used of two parts that share it. */
#define SIZE 2

byte number, claimed_of;	/* the word: which part, and how much of it is claimed */
byte sum[2];			/* not in the region: what was claimed of each part while the word was that part's */

proctype claimant(byte me)
{
	byte part, want, before, had, used, claimed, n;
	do
	:: n < 2 ->
		select(part : 0 .. 1); select(want : 1 .. SIZE);
		do
		:: STEP(before = number; had = claimed_of);
		   if
		   :: before > part -> break	/* forgotten: charged as it is */
		   :: else
		   fi;
		   used = (before == part -> had : 0);
		   claimed = (want < SIZE - used -> want : SIZE - used);
#ifdef STORE_CLAIM
		   STEP(number = part; claimed_of = used + claimed; sum[part] = sum[part] + claimed);
		   break
#else
		   if
		   :: atomic { alive[me] && number == before && claimed_of == had ->
			number = part; claimed_of = used + claimed; sum[part] = sum[part] + claimed }; break
		   :: alive[me] && (number != before || claimed_of != had)
		   :: !alive[me] -> goto end
		   fi
#endif
		od;
		assert(sum[0] <= SIZE && sum[1] <= SIZE && claimed_of <= SIZE);
		n++
	:: n == 2 -> break
	od;
end:	skip
}

proctype death() { byte j; select(j : 0 .. PROCESSES - 1); alive[j] = false }

init {
	byte i;
	atomic {
		for (i : 0 .. PROCESSES - 1) { run claimant(i) }
		run death()
	}
}

#else
#ifdef BOOT

/* The machine was booted again: the word and the clock that is noted are of the earlier boot. Every process that uses the word
 * first clears it, if the clock that is noted is not its own, and then charges one unit. Any of them may die before any step. */
#define OLD 100

byte due = OLD, noted = 1;	/* the cap's word, and of which boot's clock it is: now it is the second */
byte charged;			/* not in the region */

proctype user(byte me)
{
	byte d, n, before;
	STEP(before = noted);
	if
	:: before == 2 -> skip
	:: else ->
#ifdef NOTE_FIRST
		STEP(if :: noted == before -> noted = 2 :: else fi);
#endif
#ifdef NOTE_UNREAD
		STEP(n = noted);
		STEP(d = due);
#else
		STEP(d = due);
		STEP(n = noted);
#endif
#ifdef CLEAR_UNREAD
		STEP(due = 0);
#else
		if
		:: n == before -> STEP(if :: due == d -> due = 0 :: else fi)
		:: else
		fi;
#endif
		STEP(if :: noted == before -> noted = 2 :: else fi)
	fi;
	STEP(assert(due < OLD));	/* a launch waits for nothing of the earlier boot */
	do
	:: STEP(d = due);
	   if
	   :: atomic { alive[me] && due == d -> due = d + 1; charged++ }; break
	   :: alive[me] && due != d
	   :: !alive[me] -> goto end
	   fi
	od;
end:	skip
}

proctype death()
{
	byte j, n;
	do
	:: n < DEATHS -> select(j : 0 .. PROCESSES - 1); alive[j] = false; n++
	:: break
	od
}

init {
	byte i;
	atomic {
		for (i : 0 .. PROCESSES - 1) { run user(i) }
		run death()
	}
	(_nr_pr == 1) -> assert(noted == 1 || due == charged)	/* nothing that was charged in this boot is lost */
}

#else
#ifdef ENDS

/* A process with two threads, each with a stream of its own. A launch that passes counts itself, makes sure that the word of the
 * process's account says that there is work that is not charged, and goes to the device. A thread that has waited measures its
 * stream's work, and publishes whether there is other work. Then the process ends, and two reapers notice it, one of which may die. */
#define ROUNDS 2

bool pending[2];		/* in the process's own memory, by stream: launches that are not measured */
bool since;			/* the same: what the meter has published */
bool mark;			/* the same: a thread holds the meter's mark */
bool word;			/* the account's word */
bool flying[2];			/* not in the region: the device has work of the stream that is not measured */
byte resting, reapers;
byte charged;			/* not in the region: how often a reaper charged what was under way */
bool lost;			/* not in the region: a reaper died that had taken it over */

/* cap_show_uncharged: the thread that stores last has read again. */
inline show_word()
{
	do
	:: t = since;
	   word = t;
#ifndef SHOWN_ONCE
	   if :: since == t -> break :: else fi
#else
	   break
#endif
	od
}

/* meter_publish */
inline publish()
{
	do
	:: s = pending[0];
	   s = s || pending[1];
	   if :: s == since -> break :: else fi;
	   since = s;
	   show_word();
#ifdef PUBLISHED_ONCE
	   break
#endif
	od
}

proctype thread(byte me)
{
	byte n;
	bool s, t;
	do
	:: n < ROUNDS ->
#ifdef COUNTED_LATE
		s = since;
		pending[me] = true;
#else
		pending[me] = true;
		s = since;
#endif
		if
		:: !s -> since = true; show_word()
		:: else
		fi;
		flying[me] = true;
		n++
	:: n < ROUNDS ->
		atomic { !mark -> mark = true };
		atomic { pending[me] = false; flying[me] = false };
		publish();
		mark = false;
		n++
	:: break
	od;
	resting++
}

proctype reaper(byte me)
{
	bool took;
	(resting == 2);
#ifdef TAKEN_BLINDLY
	took = word;
	word = false;
#else
	atomic { took = word; word = false };
#endif
	if
	:: took -> if :: charged++ :: me == 0 -> lost = true fi
	:: else
	fi;
	reapers++
}

init {
	atomic { run thread(0); run thread(1); run reaper(0); run reaper(1) }
	(reapers == 2);
	assert(charged <= 1);
	assert(!(flying[0] || flying[1]) || charged == 1 || lost)
}

#else
#ifndef CAP

#define SHARE 12		/* divisible by all that can come */

#define NONE  0
#define FRESH 1
#define STALE 2
#define WORD(sign, waits) ((sign) + 4 * (waits))
#define sign(w)  ((w) % 4)
#define waits(w) ((w) / 4)

byte word[PROCESSES];		/* the sign of work */
bool reaped[PROCESSES];
byte slice[PROCESSES];

byte waiting[PROCESSES];	/* in the process's own memory: threads that wait */
bool recent[PROCESSES];		/* the same: its context had a sign of work within a lease */
bool launching[PROCESSES];	/* not in the region: it has more to launch */
byte resting;			/* not in the region: threads that have come to their end, and what goes on beside them */

#define OWN(n) (recent[me] || (n) > 0)
#define SHOWN(n) (OWN(n) -> WORD(FRESH, (n) > 0) : NONE)

/* A thread that comes back from a wait had work until then. */
#ifdef BACK_WITHOUT_SIGN
#define SIGN_BACK skip
#else
#define SIGN_BACK recent[me] = true
#endif

inline show_work()		/* this process's sign of work, with whether a thread waits */
{
	do
	:: STEP(n = waiting[me]);
	   STEP(word[me] = SHOWN(n));
#ifdef SHOW_ONCE
	   break
#else
	   if
	   :: !alive[me] -> goto end
	   :: alive[me] && waiting[me] == n -> break
	   :: alive[me] && waiting[me] != n
	   fi
#endif
	od
}

/* Whether process j counts, as another one sees it in one look at its word. */
inline count(j)
{
#ifdef ALL_CONTEXTS
	c = c + !reaped[j]
#else
	w = word[j];
	if
	:: reaped[j] || sign(w) == NONE
	:: !reaped[j] && sign(w) == FRESH -> c = c + 1
	:: !reaped[j] && sign(w) == STALE ->
#ifdef NO_WAITING
		skip
#else
		if
		:: !waits(w)
#ifdef DEAD_COUNTS
		:: waits(w) -> c = c + 1
#else
		:: waits(w) && alive[j] -> c = c + 1
		:: waits(w) && !alive[j] -> reaped[j] = true
#endif
		fi
#endif
	fi
#endif
}

inline look()			/* the slice of one of so many; what others do between two words is what they do before or after */
{
	c = OWN(waiting[me]); j = 0;
	do
	:: j < PROCESSES ->
		if :: j != me -> count(j) :: else fi;
		j++
	:: else -> break
	od;
	slice[me] = SHARE / (c -> c : 1);
	c = 0; j = 0; w = 0
}

proctype launcher(byte me)
{
	byte n, c, j, w;
	STEP(launching[me] = true; recent[me] = true);
	show_work();
	STEP(d_step { look() });
	if
	:: launching[me] = false	/* nothing more to launch */
	:: skip			/* it goes on, and is looked at again when all is quiet */
	fi;
end:	n = 0; resting++
}

/* A thread looks unless another one has just done so. */
inline look_maybe() { if :: STEP(d_step { look() }) :: skip fi }

proctype waiter(byte me)
{
	byte n, c, j, w;
	if
	:: STEP(recent[me] = true; waiting[me]++);
	   show_work(); look_maybe();
	   if
	   :: STEP(SIGN_BACK; waiting[me]--); show_work(); look_maybe()
	   :: skip		/* it waits until the end */
	   fi
	:: skip
	fi;
end:	n = 0; resting++
}

inline lease_ends()
{
	d_step {
		j = 0;
		do
		:: j < PROCESSES ->
			if :: sign(word[j]) == FRESH -> word[j] = WORD(STALE, waits(word[j])) :: else fi;
			recent[j] = false;
			j++
		:: else -> break
		od
	}
}

proctype clock() { byte j; if :: lease_ends() :: skip fi; resting++ }

proctype death()
{
	byte j, n;
	do
	:: n < DEATHS -> atomic { select(j : 0 .. PROCESSES - 1); alive[j] = false; j = 0; n++ }
	:: break
	od;
	resting++
}

/* When all is quiet: leases run out. What still launches shows it, and looks, many times before a thread comes back from its wait. What
 * waits comes back at last, looks, and waits again, when a look would be too soon. */
proctype quiet()
{
	byte me, c, j, w, busy;
	(resting == PROCESSES + 3);
	lease_ends();
	d_step {
		for (me : 0 .. PROCESSES - 1) {
			if
			:: alive[me] && launching[me] -> recent[me] = true; word[me] = SHOWN(waiting[me])
			:: else
			fi
		}
		for (me : 0 .. PROCESSES - 1) {
			if :: alive[me] && launching[me] -> look() :: else fi
		}
		for (me : 0 .. PROCESSES - 1) {
			if
			:: alive[me] && waiting[me] > 0 ->
				SIGN_BACK; waiting[me]--; word[me] = SHOWN(waiting[me]);
				look();
				recent[me] = true; waiting[me]++; word[me] = SHOWN(waiting[me])
			:: else
			fi
		}
		busy = 0;
		for (me : 0 .. PROCESSES - 1) {
			if :: alive[me] && (launching[me] || waiting[me] > 0) -> busy++ :: else fi
		}
		for (me : 0 .. PROCESSES - 1) {
			if :: alive[me] && (launching[me] || waiting[me] > 0) -> assert(slice[me] == SHARE / busy) :: else fi
		}
	}
}

init {
	byte i;
	atomic {
		for (i : 0 .. PROCESSES - 1) { run launcher(i) }
		run waiter(0);
		run clock(); run death(); run quiet()
	}
}

#else

#define MOST 2			/* what a batch takes */
#define CREDIT 1
#ifndef BATCHES
#define BATCHES 2
#endif
#ifndef LONG
#define LONG 5
#endif
#ifndef CHANGES
#define CHANGES 0
#endif

byte rate = 2;			/* the limit: a cap of one half; CHANGES of it, to all and back */
byte now;			/* the clock */
byte due, due_rate = 2;		/* the cap's word: when, and by which rate that was reckoned */
bool stopped;			/* the clock goes no further here */
byte counted;			/* all time that was measured: no more can be owed */
byte charged, used;		/* not in the region */
byte earned;			/* not in the region, in halves: what was allowed by now; all where there is no debt: at which rate
				 * that counts is known when it is charged */
byte resting;

/* What the word d, w stands for at rate r. */
#ifdef DEBT_UNSCALED
#define SCALED(d, w, r) (d)
#else
#define SCALED(d, w, r) ((d) > now -> now + (((d) - now) * (r) + (w) - 1) / (w) : (d))
#endif
#define AT(d, w, r) (SCALED(d, w, r) > now + counted * (r) -> now + counted * (r) : SCALED(d, w, r))

/* A launch begins: all that was charged is due. */
#define LAUNCHES assert(charged * 2 <= earned)

proctype user(byte me)
{
	byte u, d, w, r, t, from, next, n;
	do
	:: n < BATCHES ->
		/* Wait until what has been charged by now is due: sleep, and look again, as others may have charged meanwhile. */
		do
		:: atomic { alive[me] && AT(due, due_rate, rate) <= now -> LAUNCHES }; break
		:: atomic { alive[me] && AT(due, due_rate, rate) > now && due_rate != rate ->
			due = AT(due, due_rate, rate); due_rate = rate }	/* one swap */
		:: atomic { alive[me] && due > now && due_rate == rate -> d = due };
		   if
#ifdef LOOK_ONCE
		   :: atomic { alive[me] && d <= now -> LAUNCHES; d = 0 }; break
#else
		   :: atomic { alive[me] && d <= now -> d = 0 }
#endif
		   :: atomic { alive[me] && d > now && rate != due_rate -> d = 0 }	/* or earlier: a second at most */
		   :: !alive[me] || (stopped && d > now) -> goto end
		   fi
		:: !alive[me] -> goto end
		od;
		if :: STEP(u = 1) :: STEP(u = MOST) fi;
		used = used + u;
		/* Measured, some time after, at the cap as it is read then. */
#ifdef COUNTED_AFTER
		STEP(r = rate);
#else
		STEP(r = rate; counted = counted + u);
#endif
		do
		:: STEP(d = due; w = due_rate; t = now;
			from = (now > u + CREDIT -> now - u - CREDIT : 0);
			next = AT(d, w, r);
#ifdef DEBT_FORGIVEN
			next = (now > from -> now : from) + u * r
#else
			next = (next > from -> next : from) + u * r
#endif
		   );
#ifdef STORE_CHARGE
		   STEP(due = next; due_rate = r; charged = charged + u);
		   break
#else
		   if
		   /* A debt that is reckoned anew is off by as long as that takes: here it takes no time. */
		   :: atomic { alive[me] && due == d && due_rate == w && (w == r || t == now) -> due = next; due_rate = r; charged = charged + u }; break
		   :: alive[me] && (due != d || due_rate != w || (w != r && t != now))
		   :: !alive[me] -> goto end
		   fi
#endif
		od;
#ifdef COUNTED_AFTER
		STEP(counted = counted + u);
#endif
		n++; u = 0; d = 0; w = 0; r = 0; t = 0; from = 0; next = 0
	:: n == BATCHES -> break
	od;
end:	resting++
}

proctype clock() { do :: now < LONG -> atomic { now++; earned = earned + (due >= now || !CHANGES -> 2 / due_rate : 2) } :: stopped = true; break od }

proctype operator()
{
	byte n;
	do
	:: n < CHANGES -> rate = 3 - rate; n++	/* in force once a process has looked */
	:: break
	od
}

proctype death()
{
	byte j, n;
	do
	:: n < DEATHS -> select(j : 0 .. PROCESSES - 1); alive[j] = false; n++
	:: break
	od
}

/* Debt is kept, and a process that died has lost its own last batch and no more. */
proctype quiet()
{
	(resting == PROCESSES);
	assert(CHANGES || charged * 2 <= due);
	assert(used - charged <= DEATHS * MOST)
}

init {
	byte i;
	atomic {
		for (i : 0 .. PROCESSES - 1) { run user(i) }
		run clock(); run operator(); run death(); run quiet()
	}
}

#endif
#endif
#endif
#endif
