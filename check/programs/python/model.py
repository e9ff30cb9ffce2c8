"""A small decoder-only transformer and its training, for the programs that need a real workload.

Six layers use about 2.5 GiB: 16 bytes of state for each of 85 million parameters, and the activations of 4096 tokens.
A training step goes over its batch `parts` times before it changes the weights, which makes the step longer without
using more memory: 2 TFLOP, about 7 ms on an H200, for each part.
"""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, VOCABULARY, BATCH, LENGTH = 1024, 16, 4096, 8, 512


class Block(nn.Module):
    """Causal attention and an MLP, each around a residual."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Decoder(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(layers)), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.blocks(self.token(tokens) + self.place.weight))


class Training:
    """A model, AdamW and one batch of random tokens, the same in every process."""

    def __init__(self, layers, parts, batch=BATCH):
        torch.manual_seed(0)
        self.parts = parts
        self.model = Decoder(layers).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        tokens = torch.randint(VOCABULARY, (batch, LENGTH + 1)).cuda()
        self.tokens, self.wanted = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()

    def step(self):
        """Returns the loss, on the device, without waiting for it."""
        for _ in range(self.parts):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(self.model(self.tokens).flatten(0, 1), self.wanted)
            (loss / self.parts).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()
