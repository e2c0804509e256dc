/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/balance/choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CREDIT     0.01 /* of the time that calls have taken: what trying may cost */
#define LEAST      0.02 /* of a call of NCCL's, is what a try costs at least */
#define DEARER     1.5  /* than expected: what has been slower is tried for more */
#define OFTEN      0.5  /* the same while there are few samples of Ferry's */
#define BETTER     0.97 /* the other one takes a size over */
#define CLEARLY    0.92 /* while there are few samples of either */
#define CLOSE      1.5  /* times as slow: tried again */
#define TRY_CLOSE  256u /* one call in so many, */
#define TRY_FAR    4096u /* where it was slower than that */
#define LOOK_EVERY 32u  /* measured, of a size that is known, */
#define MEASURE_US 1.0  /* or of Ferry's as many as cost a thousandth of their time */
#define LOOK_COST  0.001
#define FIRST      5u   /* calls of Ferry's that are measured in any case */
#define FORGET     1024u /* calls after which samples that have not come are not waited for any more */
#define LOOKS      1u   /* at what promises to be faster and is doubted: under way, or seen */
#define ENOUGH     3u   /* samples of Ferry's; then it is tried as seldom as TRY_... say */
#define ASLEEP_US  40   /* that a call is late where lanes are asleep: */
#define LONG_US    250  /* little, for one that takes longer than this */
#define FEW        4    /* calls */
#define SINGLE_US  5000 /* of a call that takes longer one is a try */
#define CALLS      2    /* a try of Ferry's, one behind the other: the first finds lanes asleep, and is not measured */

/* How far off a time may be, relative, by where it comes from. */
#define DOUBT_SEEN    0.0
#define DOUBT_ONCE    0.04
#define DOUBT_KEPT    0.02
#define DOUBT_BETWEEN 0.06 /* two sizes that are known */
#define DOUBT_OCTAVE  0.08 /* away from one that is known */
#define DOUBT_PLACE   0.05 /* in place, of one that is known out of place, or the other way round */
#define DOUBT_LIMITS  0.12
#define DOUBT_PUSHES  0.09 /* which are all but bare copies */
#define DOUBT_PROVEN  0.07 /* limits that have come true elsewhere, */
#define TRUE          0.12 /* but for so much */
#define DOUBT_GUESS   0.2
#define DOUBT_FAR     0.3 /* limits, of a collective in which Ferry has been seen */
#define SURE          0.08 /* less than this is not doubted */

#define NCCL_US    12.0 /* what a call needs besides its bytes: NCCL's, */
#define PUSH_US    18.0 /* Ferry's by pushes, */
#define HOST_US    90.0 /* and by the host, where that has not been measured */
#define START_MOST 0.75 /* of a call's time */
#define HOST_RATE  50e3 /* bytes per microsecond of a device's link to the host, at most, where that has not */
#define SAVED      0.02 /* less is not the host's */
#define BEYOND     1.5  /* times the best rate of NCCL's, the same: worth two looks where calls are long */

enum { NCCLS, OURS };

void ferry_choice_init(struct ferry_choice *choice, bool peers, uint32_t nranks,
                       const struct ferry_pace paces[FERRY_NUM_FABRICS])
{
	memset(choice, 0, sizeof *choice);
	choice->peers = peers;
	choice->nranks = nranks;
	choice->learned = 1;
	memcpy(choice->paces, paces, sizeof choice->paces);
}

enum ferry_fabric ferry_choice_fabric(const struct ferry_choice *choice, enum ferry_collective collective)
{
	return choice->peers && !ferry_collective_reduces(collective) ? FERRY_FABRIC_PEER : FERRY_FABRIC_HOST;
}

/* ---- lines ---- */

static double class_bytes(uint8_t size_class)
{
	return exp2(size_class / 2.0);
}

/* What a call takes besides its bytes. */
static double start_of(const struct ferry_choice *choice, const struct ferry_choice_line *line, int side)
{
	enum ferry_fabric fabric = ferry_choice_fabric(choice, (enum ferry_collective)line->collective);
	if (side == NCCLS)
		return NCCL_US;
	if (fabric == FERRY_FABRIC_HOST && !(choice->paces[fabric].rate > 0))
		return HOST_US;
	return choice->paces[fabric].start_us + PUSH_US;
}

/* The time of a call scaled to other bytes. */
static double shift(double us, double start, double from, double to)
{
	start = fmin(start, START_MOST * us);
	return start + (us - start) * to / from;
}

static bool is_like(const struct ferry_choice_line *line, const struct ferry_choice_line *like)
{
	return line->size_class == like->size_class && line->collective == like->collective &&
	       line->type == like->type && line->in_place == like->in_place;
}

static struct ferry_choice_line *find(struct ferry_choice *choice, const struct ferry_choice_line *like)
{
	for (uint32_t i = 0; i < choice->nlines; i++)
		if (is_like(&choice->lines[i], like)) {
			choice->found = i;
			return &choice->lines[i];
		}
	if (choice->nlines == FERRY_SHARE_LINES)
		return NULL;
	choice->lines[choice->nlines] = *like;
	return &choice->lines[choice->nlines++];
}

static struct ferry_choice_line *line_of(struct ferry_choice *choice, const struct ferry_balancer_call *call)
{
	uint8_t size_class = ferry_balancer_size_class(call->bytes);
	struct ferry_choice_line *last = &choice->lines[choice->found];
	/* a call's line is looked for several times */
	if (choice->found < choice->nlines && last->size_class == size_class && last->collective == call->collective &&
	    last->type == call->type && last->in_place == call->in_place)
		return last;
	struct ferry_choice_line like = {.collective = (uint8_t)call->collective,
	                                 .type = (uint8_t)call->type,
	                                 .size_class = size_class,
	                                 .in_place = call->in_place,
	                                 .bytes = call->bytes};
	return find(choice, &like);
}

/* The median of the last samples, the lower of the middle two. 0: there is none. */
static double median(const struct ferry_choice_line *line, int side)
{
	uint32_t count = line->seen[side] < FERRY_CHOICE_SAMPLES ? line->seen[side] : FERRY_CHOICE_SAMPLES;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t less = 0, like = 0;
		for (uint32_t j = 0; j < count; j++) {
			less += line->us[side][j] < line->us[side][i];
			like += line->us[side][j] == line->us[side][i];
		}
		if (less <= (count - 1) / 2 && (count - 1) / 2 < less + like)
			return (double)line->us[side][i];
	}
	return 0;
}

/* ---- what is believed, for a class's size ---- */

/* The belief from the size itself; for a first call of NCCL's an earlier job's time is better. */
static struct ferry_choice_belief of_line(const struct ferry_choice_line *line, int side)
{
	if (line->seen[side] > (side == NCCLS))
		return (struct ferry_choice_belief){median(line, side), DOUBT_SEEN};
	if (line->known[side] > 0)
		return (struct ferry_choice_belief){(double)line->known[side], DOUBT_KEPT};
	if (line->seen[side])
		return (struct ferry_choice_belief){median(line, side), DOUBT_ONCE};
	return (struct ferry_choice_belief){0, 0};
}

/* The belief from the sizes around it, in place or not as given. NCCL's own calls count more than sizes far away. */
static struct ferry_choice_belief of_others(const struct ferry_choice *choice, const struct ferry_choice_line *line,
                                            bool in_place, int side)
{
	const struct ferry_choice_line *below = NULL, *above = NULL;
	double bytes = class_bytes(line->size_class);
	for (uint32_t i = 0; i < choice->nlines; i++) {
		const struct ferry_choice_line *other = &choice->lines[i];
		if (other->collective != line->collective || other->type != line->type ||
		    other->in_place != in_place || !(of_line(other, side).us > 0))
			continue;
		if (other->size_class <= line->size_class && (!below || other->size_class > below->size_class))
			below = other;
		if (other->size_class >= line->size_class && (!above || other->size_class < above->size_class))
			above = other;
	}
	if (!below && !above)
		return (struct ferry_choice_belief){0, 0};
	if (below && above) {
		double low = class_bytes(below->size_class), high = class_bytes(above->size_class);
		double from = of_line(below, side).us, to = of_line(above, side).us;
		return (struct ferry_choice_belief){high > low ? from + (to - from) * (bytes - low) / (high - low)
		                                               : from,
		                                    high > low ? DOUBT_BETWEEN : DOUBT_KEPT};
	}
	const struct ferry_choice_line *one = below ? below : above;
	double octaves = abs((int)one->size_class - (int)line->size_class) / 2.0;
	if (side == NCCLS && octaves > 1)
		return (struct ferry_choice_belief){0, 0};
	return (struct ferry_choice_belief){
	        shift(of_line(one, side).us, start_of(choice, line, side), class_bytes(one->size_class), bytes),
	        DOUBT_OCTAVE * octaves};
}

/* The bytes of a call for each that the busiest device moves. */
static double bytes_per_moved(const struct ferry_choice *choice, enum ferry_collective collective)
{
	bool blocks = collective != FERRY_BROADCAST && collective != FERRY_SENDRECV &&
	              !ferry_collective_reduces(collective); /* whose input goes to the host whole */
	return blocks && choice->nranks > 1 ? choice->nranks / (choice->nranks - 1.0) : 1;
}

/* The best rate that NCCL has reached in this collective. */
static double best_rate(const struct ferry_choice *choice, const struct ferry_choice_line *line)
{
	double best = 0;
	for (uint32_t i = 0; i < choice->nlines; i++) {
		const struct ferry_choice_line *other = &choice->lines[i];
		double us = of_line(other, NCCLS).us;
		if (other->collective == line->collective && other->type == line->type && us > 0)
			best = fmax(best, class_bytes(other->size_class) / us);
	}
	return best;
}

/* How much less pushes take as the host has a part of the call beside them (rank-lib/program/shares.h). */
static double saved_by_host(const struct ferry_choice *choice, enum ferry_collective collective, double pushes_us)
{
	const struct ferry_pace *host = &choice->paces[FERRY_FABRIC_HOST], *peer = &choice->paces[FERRY_FABRIC_PEER];
	if (collective == FERRY_SENDRECV || !(host->rate > 0)) /* messages are not divided */
		return 0;
	double share = host->rate / (host->rate + peer->rate) * (1 - host->start_us / pushes_us);
	return share < SAVED ? 0 : share * pushes_us;
}

/*
 * The time that the machine's measured rates promise for Ferry; by a guess, if nothing has been measured: *guess. 0:
 * unknown.
 */
static double promised_us(const struct ferry_choice *choice, const struct ferry_choice_line *line, bool *guess)
{
	enum ferry_collective collective = (enum ferry_collective)line->collective;
	enum ferry_fabric fabric = ferry_choice_fabric(choice, collective);
	double per_moved = bytes_per_moved(choice, collective);
	struct ferry_pace pace = {start_of(choice, line, OURS), choice->paces[fabric].rate * per_moved};
	*guess = !(pace.rate > 0);
	if (*guess) {
		pace.rate = BEYOND * best_rate(choice, line);
		if (fabric == FERRY_FABRIC_HOST)
			pace.rate = fmin(pace.rate, HOST_RATE * per_moved);
	}
	if (!(pace.rate > 0))
		return 0;
	double us = ferry_pace_us(&pace, class_bytes(line->size_class));
	return fabric == FERRY_FABRIC_PEER && !*guess ? us - saved_by_host(choice, collective, us) : us;
}

/* The nearest of the sizes and collectives that Ferry has by the same fabric and has been seen in. */
static const struct ferry_choice_line *nearest_seen(const struct ferry_choice *choice,
                                                    const struct ferry_choice_line *line)
{
	const struct ferry_choice_line *nearest = NULL;
	enum ferry_fabric fabric = ferry_choice_fabric(choice, (enum ferry_collective)line->collective);
	for (uint32_t i = 0; i < choice->nlines; i++) {
		const struct ferry_choice_line *other = &choice->lines[i];
		if (other == line || !(of_line(other, OURS).us > 0) ||
		    ferry_choice_fabric(choice, (enum ferry_collective)other->collective) != fabric)
			continue;
		if (!nearest || abs((int)other->size_class - (int)line->size_class) <
		                        abs((int)nearest->size_class - (int)line->size_class))
			nearest = other;
	}
	return nearest;
}

/* The belief about Ferry from the machine's rates. Rates that have come true elsewhere are hardly doubted. */
static struct ferry_choice_belief of_machine(const struct ferry_choice *choice, const struct ferry_choice_line *line)
{
	bool guess, unused;
	double us = promised_us(choice, line, &guess);
	if (!(us > 0) || guess)
		return (struct ferry_choice_belief){us, DOUBT_GUESS};
	const struct ferry_choice_line *seen = nearest_seen(choice, line);
	double off = seen ? of_line(seen, OURS).us / promised_us(choice, seen, &unused) : 0;
	if (seen && fabs(log(off)) < TRUE)
		return (struct ferry_choice_belief){us * off, DOUBT_PROVEN};
	bool pushes = ferry_choice_fabric(choice, (enum ferry_collective)line->collective) == FERRY_FABRIC_PEER;
	return (struct ferry_choice_belief){us, pushes ? DOUBT_PUSHES : DOUBT_LIMITS};
}

static struct ferry_choice_belief less_doubted(struct ferry_choice_belief one, struct ferry_choice_belief other)
{
	return !(one.us > 0) || (other.us > 0 && other.doubt < one.doubt) ? other : one;
}

static struct ferry_choice_belief believe(const struct ferry_choice *choice, const struct ferry_choice_line *line,
                                          int side)
{
	struct ferry_choice_belief best = of_line(line, side);
	if (best.us > 0)
		return best;
	struct ferry_choice_belief elsewhere = of_others(choice, line, !line->in_place, side);
	elsewhere.doubt += DOUBT_PLACE;
	best = less_doubted(of_others(choice, line, line->in_place, side), elsewhere);
	if (side == OURS) {
		struct ferry_choice_belief machine = of_machine(choice, line);
		if (best.us > 0 && machine.doubt > DOUBT_PROVEN)
			machine.doubt = DOUBT_FAR;
		best = less_doubted(best, machine);
	}
	if (line->seen[side] && (double)line->us[side][0] < best.us)
		best = (struct ferry_choice_belief){(double)line->us[side][0], DOUBT_ONCE};
	return best;
}

/* ---- what is chosen ---- */

/* The outlook is kept: for most calls nothing has been learned since the last one of the size. */
static const struct ferry_choice_outlook *look(const struct ferry_choice *choice, struct ferry_choice_line *line)
{
	struct ferry_choice_outlook *outlook = &line->outlook;
	if (line->looked == choice->learned)
		return outlook;
	const struct ferry_choice_belief nccl = believe(choice, line, NCCLS), ours = believe(choice, line, OURS);
	bool known = nccl.us > 0 && ours.us > 0;
	double worst = ours.us * (1 + ours.doubt) - nccl.us * (1 - nccl.doubt);
	int calls = ours.us < nccl.us ? 1 : CALLS; /* what is likely to gain costs seldom so much */
	double asleep = ours.doubt < DOUBT_GUESS ? 0 : ASLEEP_US;
	*outlook = (struct ferry_choice_outlook){.of = {nccl, ours},
	                                         .settled = known && nccl.doubt <= DOUBT_KEPT &&
	                                                    ours.doubt <= DOUBT_KEPT,
	                                         .clear = known && worst < 0,
	                                         .cost = fmax(calls * worst + asleep, LEAST * nccl.us)};
	line->looked = choice->learned;
	return outlook;
}

/* The first of two finds lanes asleep, which matters little to a long one. */
static int calls_of_try(const struct ferry_choice_outlook *outlook)
{
	return outlook->of[OURS].us > SINGLE_US ? 1 : CALLS;
}

/* Both times are known: chooses the faster library, but for a try of the other now and then. */
static bool choose(struct ferry_choice_line *line, const struct ferry_choice_outlook *outlook, uint64_t n)
{
	double us[2] = {outlook->of[NCCLS].us, outlook->of[OURS].us};
	bool seen = line->seen[NCCLS] >= ENOUGH && line->seen[OURS] >= ENOUGH;
	if (us[!line->ours] < (seen ? BETTER : CLEARLY) * us[line->ours]) {
		line->ours = !line->ours;
		line->asked[line->ours] = 0; /* whether that was right is soon seen */
	}
	double cost = fmax(0, us[!line->ours] - us[line->ours]);
	if (line->burst.on && !line->ours) {
		line->due |= ferry_burst_tries(&line->burst, calls_of_try(outlook) * cost);
		return line->due && !line->pending;
	}
	uint32_t every = us[!line->ours] < CLOSE * us[line->ours] ? TRY_CLOSE : TRY_FAR;
	bool few = !line->ours && line->seen[OURS] && line->seen[OURS] < ENOUGH;
	/* that of one sample or two a busy machine made them slow is likely: that is found out soon */
	cost *= few ? OFTEN : DEARER;
	line->due |= few || ferry_balancer_picks(n, every);
	return line->ours != (line->due && line->credit_us > (line->ours ? 1 : calls_of_try(outlook)) * cost &&
	                      !line->pending);
}

/*
 * A try finds lanes asleep: a few calls of Ferry's must make up for that, or the calls made so far can bear the cost.
 */
static bool pays_soon(const struct ferry_choice_line *line, const struct ferry_choice_outlook *outlook)
{
	return FEW * (outlook->of[NCCLS].us - outlook->of[OURS].us) > ASLEEP_US || line->credit_us > ASLEEP_US;
}

/*
 * Whether a guess can be compared with the times of NCCL's calls. Its first call does not count, unless another size,
 * or this one out of place or in place, has shown what its later ones take. Of short calls, in which lanes that are
 * asleep are late, there have to be some before.
 */
static bool has_measure(const struct ferry_choice *choice, const struct ferry_choice_line *line)
{
	bool measured = line->seen[NCCLS] > 1;
	for (uint32_t i = 0; i < choice->nlines && !measured; i++) {
		const struct ferry_choice_line *other = &choice->lines[i];
		measured = other->collective == line->collective && other->type == line->type &&
		           other->seen[NCCLS] > 1;
	}
	return measured && (line->outlook.of[NCCLS].us > LONG_US || line->credit_us > ASLEEP_US);
}

/* What is believed; nothing is tried. */
static bool is_ours(const struct ferry_choice_line *line, const struct ferry_choice_outlook *outlook)
{
	return outlook->settled ? line->ours : outlook->clear && outlook->of[OURS].doubt < SURE;
}

bool ferry_choice_ours(struct ferry_choice *choice, const struct ferry_balancer_call *call, uint64_t n,
                       bool measurable)
{
	struct ferry_choice_line *line = line_of(choice, call);
	if (!line)
		return false;
	if (ferry_balancer_picks(n, FORGET))
		line->pending = 0;
	const struct ferry_choice_outlook *outlook = look(choice, line);
	if (!measurable)
		return is_ours(line, outlook);
	if (line->again)
		return true;
	if (outlook->settled)
		return choose(line, outlook, n);
	if (!(outlook->of[NCCLS].us > 0) || !(outlook->of[OURS].us > 0))
		return false;
	if (outlook->clear && outlook->of[OURS].doubt < SURE)
		return line->ours = true;
	if (outlook->clear)
		return line->pending + line->seen[OURS] < LOOKS && pays_soon(line, outlook) &&
		       (outlook->of[OURS].doubt < DOUBT_GUESS || has_measure(choice, line));
	return line->credit_us > outlook->cost && !line->pending;
}

bool ferry_choice_learns(struct ferry_choice *choice, const struct ferry_balancer_call *call)
{
	struct ferry_choice_line *line = line_of(choice, call);
	if (!line)
		return false;
	const struct ferry_choice_outlook *outlook = look(choice, line);
	bool known = outlook->of[NCCLS].us > 0 && outlook->of[OURS].us > 0;
	return !outlook->settled && (!known || outlook->clear);
}

void ferry_choice_unmeasured(struct ferry_choice *choice, const struct ferry_balancer_call *call, bool ours)
{
	struct ferry_choice_line *line = line_of(choice, call);
	if (!line)
		return;
	line->asked[ours] -= line->asked[ours] > 0;
	line->pending -= ours && line->pending;
}

/* One call in so many is measured; more of those that Ferry has, which must not be slower than NCCL's. */
static uint32_t look_every(const struct ferry_choice_outlook *outlook, bool ours)
{
	double us = outlook->of[ours].us, calls = us > 0 ? ceil(MEASURE_US / (LOOK_COST * us)) : 1;
	return ours && calls < LOOK_EVERY ? (uint32_t)calls : LOOK_EVERY;
}

bool ferry_choice_agreed(struct ferry_choice *choice, const struct ferry_balancer_call *call, uint64_t n, bool ours,
                         bool measurable)
{
	struct ferry_choice_line *line = line_of(choice, call);
	if (!line)
		return false;
	const struct ferry_choice_outlook *outlook = look(choice, line);
	double us[2] = {outlook->of[NCCLS].us, outlook->of[OURS].us};
	bool known = us[NCCLS] > 0 && us[OURS] > 0, doubted = ours && !outlook->settled;
	/* else another rank knows better */
	bool other = outlook->settled && ours != line->ours && (line->due || (ours && line->again));
	/* the second call of a try is measured whatever has come between: else each would be a first one */
	bool tried = doubted || (ours && other), single = calls_of_try(outlook) == 1;
	bool cold = ours && !line->warm && !line->again && !single;
	line->bytes = call->bytes;
	line->credit_us += CREDIT * us[ours];
	line->warm = ours;
	if (!measurable)
		return false;
	line->again = tried && cold;
	line->due &= !other;
	if (line->burst.on && !ours)
		ferry_burst_call(&line->burst, us[NCCLS]);
	else if (line->burst.on && tried && !cold)
		ferry_burst_tried(&line->burst);
	if (other)
		line->credit_us -= DEARER * fmax(0, us[ours] - us[!ours]);
	else if (doubted && known && !outlook->clear)
		line->credit_us -= outlook->cost / CALLS;
	/* a call of NCCL's costs a little to be measured */
	uint32_t first = ours ? FIRST : line->known[NCCLS] > 0 ? 0 : 2;
	bool measure = !cold && (tried || other || line->asked[ours] < first ||
	                         line->burst.on || ferry_balancer_picks(n, look_every(outlook, ours)));
	line->pending += measure && tried;
	line->asked[ours] += measure;
	return measure;
}

/* All samples become this time from now on. One of NCCL's is not enough (of_line). */
static void take_instead(struct ferry_choice_line *line, int side, double us)
{
	line->seen[side] = side == NCCLS ? 2 : 1;
	line->us[side][0] = line->us[side][1] = (float)us;
}

/* Feeds a sample to the burst, and to what is known in it. */
static void feed_burst(struct ferry_choice_line *line, bool ours, double us)
{
	double usual[2] = {median(line, NCCLS), median(line, OURS)};
	bool known = usual[NCCLS] > 0 && line->seen[OURS] > ENOUGH;
	if (!line->burst.on && ours && line->ours && known && ferry_burst_begins(&line->burst, usual, us)) {
		line->seen[OURS] = 0;
	} else if (line->burst.on && ours && ferry_burst_ends(&line->burst, us)) {
		line->seen[OURS] = 0;
		take_instead(line, NCCLS, (double)line->burst.usual_us[NCCLS]);
	} else if (line->burst.on && !ours && ferry_burst_nccl(&line->burst, us)) {
		take_instead(line, NCCLS, us);
	}
}

void ferry_choice_feed(struct ferry_choice *choice, const struct ferry_balancer_call *call, bool ours, double us)
{
	struct ferry_choice_line *line = line_of(choice, call);
	if (!line || !(us > 0) || !isfinite(us))
		return;
	us = shift(us, start_of(choice, line, ours), (double)call->bytes, class_bytes(line->size_class));
	feed_burst(line, ours, us);
	line->us[ours][line->seen[ours]++ % FERRY_CHOICE_SAMPLES] = (float)us;
	line->pending -= ours && line->pending;
	choice->learned++;
}

/* ---- from job to job ---- */

void ferry_choice_adopt(struct ferry_choice *choice, const struct ferry_share_line *learned)
{
	struct ferry_choice_line like = {.collective = learned->collective,
	                                 .type = learned->type,
	                                 .size_class = learned->size_class,
	                                 .in_place = learned->in_place,
	                                 .bytes = learned->bytes};
	struct ferry_choice_line *line = find(choice, &like);
	if (!line)
		return;
	double bytes = class_bytes(line->size_class);
	enum ferry_fabric ours = ferry_choice_fabric(choice, (enum ferry_collective)line->collective);
	const struct ferry_pace *paces[2] = {&learned->paces[FERRY_FABRIC_NCCL], &learned->paces[ours]};
	for (int side = NCCLS; side <= OURS; side++)
		if (paces[side]->rate > 0)
			line->known[side] = (float)ferry_pace_us(paces[side], bytes);
	line->ours = line->known[OURS] > 0 && line->known[OURS] < line->known[NCCLS];
	choice->learned++;
}

bool ferry_choice_record(struct ferry_choice *choice, const struct ferry_balancer_call *call, uint32_t *index,
                         struct ferry_share_line *logged)
{
	struct ferry_choice_line *line = line_of(choice, call);
	if (!line)
		return false;
	const struct ferry_choice_outlook *outlook = look(choice, line);
	enum ferry_fabric ours = ferry_choice_fabric(choice, call->collective);
	struct ferry_shares shares = {.part = {0}};
	double bytes = class_bytes(line->size_class);
	bool taken = outlook->settled ? line->ours : outlook->clear;
	shares.part[taken ? ours : FERRY_FABRIC_NCCL] = FERRY_SHARES_WHOLE;
	*index = (uint32_t)(line - choice->lines);
	*logged = (struct ferry_share_line){.collective = line->collective,
	                                    .type = line->type,
	                                    .size_class = line->size_class,
	                                    .whole = true,
	                                    .in_place = line->in_place,
	                                    .why = outlook->settled   ? FERRY_BALANCE_SETTLED
	                                           : line->seen[OURS] ? FERRY_BALANCE_LEARNING
	                                                              : FERRY_BALANCE_COLD,
	                                    .samples = line->seen[NCCLS] + line->seen[OURS],
	                                    .word = ferry_shares_pack(&shares),
	                                    .interval = look_every(outlook, taken),
	                                    .bytes = line->bytes,
	                                    .us = shift(outlook->of[taken].us, start_of(choice, line, taken), bytes,
	                                                (double)line->bytes)};
	for (int side = NCCLS; side <= OURS; side++) {
		double us = of_line(line, side).us; /* nothing that is not known of this size */
		if (us > 0)
			logged->paces[side == OURS ? ours : FERRY_FABRIC_NCCL].rate = bytes / us;
	}
	return true;
}
