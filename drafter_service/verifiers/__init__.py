"""The verifiers of a drafter: announcements to them, and the sharing of drafting time among them."""
