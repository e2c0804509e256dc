/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The call decoder: turns the submissions of a rank to the router that moves its data into calls on the lanes of its
 * GPU. It trusts nothing that the rank writes: a wrong record ends that job, alone.
 */
#ifndef FERRY_ROUTER_ENGINE_CALL_DECODER_H
#define FERRY_ROUTER_ENGINE_CALL_DECODER_H

#include "router/engine/remote_rank.h"

/** Hands what a remote rank has submitted to the lanes; true: there was something. By the D2H lane, each round. */
bool ferry_call_decoder_take(struct ferry_member *member);

#endif
