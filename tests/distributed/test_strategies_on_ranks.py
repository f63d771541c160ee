"""fsdp2 and zero1 leave the gradient of the objective, whatever ranks hold; a mean of means is refused and named."""
from tests.distributed.test_gradient_on_ranks import theta_gradients
